"""Runs, on a CPU and over a miniature, the pipeline of Self-Forcing or of an original that is built on its code.

These are LongLive 1.0, Infinity-RoPE, MemRoPE and Self Gradient Forcing. See `standins.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
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
ABSENT = ("wan.modules.tokenizers", "wan.modules.t5", "demo_utils.memory", "utils.memory")


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the latents of every case, `b c t h w`; with `pixels`, what the official VAE makes of the first.

    A case has the options of the `model`, and `asked`, what its `inference` is called with; perhaps `block_frames`.
    """
    without_cuda()
    use_checkout(checkout, packages=("wan", "wan.modules", "pipeline"), absent=ABSENT)
    build = pipelines(request)
    videos = {
        name: latents(build(case["model"], case.get("block_frames", 3)), request["noise"], case["asked"])
        for name, case in request["cases"].items()
    }
    return {"latents": videos, **(pixels(next(iter(videos.values()))) if request.get("pixels") else {})}


def latents(pipeline: Any, noise: Tensor, asked: Mapping[str, Any]) -> Tensor:
    noise = noise.transpose(1, 2)  # slots t c h w
    with drawing("randn_like", noise, len(pipeline.denoising_step_list), pipeline.num_frame_per_block):
        _, made = pipeline.inference(noise[:1], **asked, return_latents=True)
    return made.transpose(1, 2)


def pipelines(request: Mapping[str, Any]) -> Callable[[Mapping[str, Any], int], Any]:
    """Return what makes a pipeline over a miniature with the released settings, for some options of the model."""
    from wan.modules import attention

    use_eager_attention(attention)
    import pipeline.causal_inference as inference
    import utils.wan_wrapper as wrapper

    sizes = request["sizes"]
    tokens = request["frame_tokens"]
    pipe = inference.CausalInferencePipeline
    cache = {FULL_CACHE: request["noise"].shape[2] * tokens} if request["whole_cache"] else {}
    for name in request["models"]:
        causal = import_module(f"wan.modules.{name}")
        causal.CausalWanModel.from_pretrained = classmethod(
            lambda cls, _, low_cpu_mem_usage=None, device_map=None, **options: cls(**sizes, **options)
        )
        replace_numbers(causal.CausalWanSelfAttention, "__init__", {FULL_FRAME: tokens, **cache})
    replace_numbers(pipe, "__init__", {FULL_FRAME: tokens, 30: sizes["num_layers"]})
    replace_numbers(pipe, "_initialize_kv_cache", {12: sizes["num_heads"], **cache})
    replace_numbers(pipe, "_initialize_crossattn_cache", {12: sizes["num_heads"]})
    module, name = request["pipeline"].rsplit(".", 1)
    kind = getattr(import_module(f"pipeline.{module}"), name)
    if request.get("flush"):
        scale_flush(kind, tokens)

    def build(model: Mapping[str, Any], block_frames: int) -> Any:
        options = SimpleNamespace(timestep_shift=5.0, **model)
        generator = wrapper.WanDiffusionWrapper(**vars(options), is_causal=True)
        load(generator.model, request["weights"])
        settings = SimpleNamespace(
            denoising_step_list=[1000, 750, 500, 250],
            warp_denoising_step=True,
            num_frame_per_block=block_frames,
            independent_first_frame=False,
            context_noise=0,
            global_sink=True,
            model_kwargs=options,
        )
        prompts = Prompts(request["prompts"])
        return kind(settings, "cpu", generator=generator, text_encoder=prompts, vae=NoPixels())

    return build


def scale_flush(pipe: Any, frame_tokens: int) -> None:
    """Give the flush of Infinity-RoPE, a function within a method, the miniature's tokens per frame."""
    code = pipe.inference.__code__
    numbers = {frames * FULL_FRAME: frames * frame_tokens for frames in (1, 3, -2)}
    inner = next(c for c in code.co_consts if getattr(c, "co_name", "") == "kv_flush")
    scaled = inner.replace(co_consts=tuple(numbers.get(c, c) if type(c) is int else c for c in inner.co_consts))
    pipe.inference.__code__ = code.replace(co_consts=tuple(scaled if c is inner else c for c in code.co_consts))


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
