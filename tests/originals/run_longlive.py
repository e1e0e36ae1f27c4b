"""Runs LongLive 1.0's own interactive pipeline on a CPU, over a miniature of its model. See `standins.py`."""

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
from torch import Tensor

ABSENT = ("wan.modules.tokenizers", "wan.modules.t5", "utils.memory")


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    without_cuda()
    use_checkout(checkout, packages=("wan", "wan.modules", "pipeline"), absent=ABSENT)
    make = pipelines(request)
    noise = request["noise"].transpose(1, 2)
    return {name: latents(make, noise, **case) for name, case in request["cases"].items()}


def latents(make: Any, noise: Tensor, *, switch: int, infinite: bool = False) -> Tensor:
    """Return a video's latents. `switch`: the latent frame from which on it has the second prompt; -1 for none."""
    pipeline = make(infinite)
    prompts, frames = ([["first"], ["second"]], [switch]) if switch >= 0 else ([["first"]], [])
    asked = {"text_prompts_list": prompts, "switch_frame_indices": frames}
    with drawing("randn_like", noise, len(pipeline.denoising_step_list)):
        _, made = pipeline.inference(noise[:1], **asked, return_latents=True)
    return made.transpose(1, 2)


def pipelines(request: Mapping[str, Any]) -> Any:
    """Return what makes its pipeline over a miniature, as released: window 12, sink 3, global sink.

    What it returns is asked for the variant with relative positions, or without.
    """
    from wan.modules import attention

    use_eager_attention(attention)
    import pipeline.causal_inference as inference
    import pipeline.interactive_causal_inference as interactive
    import utils.wan_wrapper as wrapper
    from wan.modules import causal_model, causal_model_infinity

    sizes, tokens, pipe = request["sizes"], request["frame_tokens"], inference.CausalInferencePipeline
    for causal in (causal_model, causal_model_infinity):
        causal.CausalWanModel.from_pretrained = classmethod(lambda cls, _, **options: cls(**sizes, **options))
        replace_numbers(causal.CausalWanSelfAttention, "__init__", {FULL_FRAME: tokens})
    replace_numbers(pipe, "__init__", {FULL_FRAME: tokens, 30: sizes["num_layers"]})
    replace_numbers(pipe, "_initialize_kv_cache", {12: sizes["num_heads"]})
    replace_numbers(pipe, "_initialize_crossattn_cache", {12: sizes["num_heads"]})

    def make(infinite: bool) -> Any:
        options = SimpleNamespace(
            local_attn_size=12, timestep_shift=5.0, sink_size=3, use_infinite_attention=infinite
        )
        generator = wrapper.WanDiffusionWrapper(**vars(options), is_causal=True)
        load(generator.model, request["weights"])
        settings = SimpleNamespace(
            denoising_step_list=[1000, 750, 500, 250],
            warp_denoising_step=True,
            num_frame_per_block=3,
            context_noise=0,
            global_sink=True,
            model_kwargs=options,
        )
        prompts = Prompts(request["prompts"])
        return interactive.InteractiveCausalInferencePipeline(
            settings, "cpu", generator=generator, text_encoder=prompts, vae=NoPixels()
        )

    return make


if __name__ == "__main__":
    answer(run)
