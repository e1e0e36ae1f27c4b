"""Runs MemRoPE's own pipeline on a CPU, over a miniature of its model. See `standins.py`."""

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
    replace_numbers,
    use_checkout,
    use_eager_attention,
    without_cuda,
)


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a video's latents `b c t h w`, as released: window 12, sink 3, two means."""
    without_cuda()
    absent = ("wan.modules.tokenizers", "wan.modules.t5", "utils.memory")
    use_checkout(checkout, packages=("wan", "wan.modules", "pipeline"), absent=absent)
    from wan.modules import attention

    use_eager_attention(attention)
    import pipeline.causal_inference as inference
    import utils.wan_wrapper as wrapper
    from wan.modules import causal_model as causal

    sizes, tokens, model = request["sizes"], request["frame_tokens"], causal.CausalWanModel
    pipe = inference.CausalInferencePipeline
    model.from_pretrained = classmethod(lambda cls, _, **options: cls(**sizes, **options))
    replace_numbers(causal.CausalWanSelfAttention, "__init__", {FULL_FRAME: tokens})
    replace_numbers(pipe, "__init__", {FULL_FRAME: tokens, 30: sizes["num_layers"]})
    replace_numbers(pipe, "_initialize_kv_cache", {12: sizes["num_heads"]})
    replace_numbers(pipe, "_initialize_crossattn_cache", {12: sizes["num_heads"]})
    options = SimpleNamespace(
        local_attn_size=12, timestep_shift=5.0, sink_size=3, recent_size=4, compression_method="ema"
    )
    generator = wrapper.WanDiffusionWrapper(**vars(options), is_causal=True)
    load(generator.model, request["weights"])
    settings = SimpleNamespace(
        denoising_step_list=[1000, 750, 500, 250],
        warp_denoising_step=True,
        num_frame_per_block=3,
        context_noise=0,
        model_kwargs=options,
    )
    prompts = Prompts(request["prompts"])
    pipeline = pipe(settings, "cpu", generator=generator, text_encoder=prompts, vae=NoPixels())
    noise = request["noise"].transpose(1, 2)  # slots t c h w
    with drawing("randn_like", noise, len(pipeline.denoising_step_list)):
        _, made = pipeline.inference(noise[:1], ["first"], return_latents=True)
    return {"latents": made.transpose(1, 2)}


if __name__ == "__main__":
    answer(run)
