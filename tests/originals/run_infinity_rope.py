"""Runs Infinity-RoPE's own pipeline on a CPU, over a miniature of its model. See `standins.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run_self_forcing import build
from standins import FULL_FRAME, answer, drawing, use_checkout, without_cuda
from torch import Tensor


def run(checkout: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    without_cuda()
    use_checkout(
        checkout,
        packages=("wan", "wan.modules", "pipeline"),
        absent=("wan.modules.tokenizers", "wan.modules.t5", "demo_utils.memory"),
    )
    return {name: latents(request, **case) for name, case in request["cases"].items()}


def latents(request: Mapping[str, Any], *, prompts: str) -> Tensor:
    """Return a video's latents, window 6, sink 1. `prompts`: in its own form, `first[4.5s#] | second[2s]`."""
    pipeline = build(request, window=6, sink=1)
    scale_flush(type(pipeline), request["frame_tokens"])
    noise = request["noise"].transpose(1, 2)
    with drawing("randn_like", noise, len(pipeline.denoising_step_list)):
        _, made = pipeline.inference(noise[:1], [prompts], return_latents=True)
    return made.transpose(1, 2)


def scale_flush(pipe: Any, frame_tokens: int) -> None:
    """Give its flush, a function within a method, the miniature's tokens per frame."""
    code = pipe.inference.__code__
    numbers = {frames * FULL_FRAME: frames * frame_tokens for frames in (1, 3, -2)}
    inner = next(c for c in code.co_consts if getattr(c, "co_name", "") == "kv_flush")
    scaled = inner.replace(co_consts=tuple(numbers.get(c, c) if type(c) is int else c for c in inner.co_consts))
    pipe.inference.__code__ = code.replace(co_consts=tuple(scaled if c is inner else c for c in code.co_consts))


if __name__ == "__main__":
    answer(run)
