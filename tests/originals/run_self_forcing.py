"""Runs Self-Forcing's own pipeline on a CPU, over a miniature of its model. See `standins.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from standins import (
    FULL_FRAME,
    NoPixels,
    Prompts,
    answer,
    drawing,
    load,
    random_weights,
    replace_numbers,
    use_checkout,
    use_eager_attention,
    without_cuda,
)
from torch import Tensor

FULL_CACHE = 32760
"""The tokens of 21 latent frames at 480 x 832, the size of the cache without a window."""


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the latents of every case, `b c t h w`, and what the official VAE makes of the first."""
    without_cuda()
    use_checkout(
        checkout,
        packages=("wan", "wan.modules", "pipeline"),
        absent=("wan.modules.tokenizers", "wan.modules.t5", "demo_utils.memory"),
    )
    made = {name: latents(request, **case) for name, case in request["cases"].items()}
    return {"latents": made, **pixels(next(iter(made.values())))}


def latents(request: Mapping[str, Any], *, window: int, sink: int) -> Tensor:
    """Return a video's latents. `window`: latent frames, -1 for a cache that holds all of them."""
    pipeline = build(request, window=window, sink=sink)
    noise = request["noise"].transpose(1, 2)  # slots t c h w
    with drawing("randn_like", noise, len(pipeline.denoising_step_list)):
        _, made = pipeline.inference(noise[:1], ["first"], return_latents=True)
    return made.transpose(1, 2)


def build(request: Mapping[str, Any], *, window: int, sink: int) -> Any:
    """Return its inference pipeline over a miniature, with the released checkpoint's settings."""
    from wan.modules import attention

    use_eager_attention(attention)
    import pipeline.causal_inference as inference
    import utils.wan_wrapper as wrapper
    from wan.modules import causal_model as causal

    sizes, model = request["sizes"], causal.CausalWanModel
    cache = request["noise"].shape[2] * request["frame_tokens"]
    model.from_pretrained = classmethod(
        lambda cls, _, low_cpu_mem_usage=None, device_map=None, **options: cls(**sizes, **options)
    )
    once(causal.CausalWanSelfAttention, "__init__", {FULL_FRAME: request["frame_tokens"], FULL_CACHE: cache})
    pipe = inference.CausalInferencePipeline
    once(pipe, "__init__", {FULL_FRAME: request["frame_tokens"], 30: sizes["num_layers"]})
    once(pipe, "_initialize_kv_cache", {FULL_CACHE: cache, 12: sizes["num_heads"]})
    once(pipe, "_initialize_crossattn_cache", {12: sizes["num_heads"]})

    generator = wrapper.WanDiffusionWrapper(
        timestep_shift=5.0, is_causal=True, local_attn_size=window, sink_size=sink
    )
    load(generator.model, request["weights"])
    settings = SimpleNamespace(
        denoising_step_list=[1000, 750, 500, 250],
        warp_denoising_step=True,
        num_frame_per_block=3,
        independent_first_frame=False,
        context_noise=0,
    )
    prompts = Prompts(request["prompts"])
    return pipe(settings, "cpu", generator=generator, text_encoder=prompts, vae=NoPixels())


def once(owner: Any, method: str, numbers: Mapping[int, int]) -> None:
    if (owner, method) not in DONE:
        replace_numbers(owner, method, numbers)
        DONE.add((owner, method))


DONE: set[tuple[Any, str]] = set()


def pixels(made: Tensor) -> Mapping[str, Any]:
    """Return the official VAE's pixels of latents `b c t h w`, `b f c h w` in [-1, 1], and its random weights."""
    import utils.wan_wrapper as wrapper
    from wan.modules import vae

    small = random_weights(vae.WanVAE_(dim=8, z_dim=16, temperal_downsample=[False, True, True]), seed=0)
    wrapper._video_vae = lambda **options: small
    frames = wrapper.WanVAEWrapper().decode_to_pixel(made.transpose(1, 2), use_cache=False)
    return {"pixels": frames, "vae": small.state_dict()}


if __name__ == "__main__":
    answer(run)
