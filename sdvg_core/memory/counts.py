"""The cost of passes: operations, counted, and one measured table of weights.

Operations do not tell seconds: a decoder reaches a quarter of a GPU's rate, a transformer half of it. So studies
and budgets take the weights, and those of one pair on one GPU: neither device, size nor decoder changes the video
that a budget asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..causal_wan.config import WanConfig
from ..causal_wan.presets import Preset
from ..engine.inputs import CONTROL_CHANNELS
from .request import PUBLISHED_BASE, PlanRequest
from .sizes import frame_tokens, kv_frames

WEIGHTED_FRAMES = 3
"""Latent frames of a pass and a decode in `WEIGHTS`."""
WEIGHTS: Mapping[str, float] = {
    "drafter_denoising": 0.0301,
    "drafter_context": 0.0227,
    "target_denoising": 0.1839,
    "target_context": 0.1514,
    "decodes": 0.1042,
    "encodes": 0.0088,
    "scores": 0.0037,
}
"""The cost of each kind of pass in target blocks: four denoising steps, a context pass, a decode, an encode.

Named as in `RunReport.passes`; `encodes` and `scores` are of one pixel frame. From seconds on one H200 (26 November
2026, benchmarks/LOG.md): random weights of 1.3B and 14B, 832x480, nine blocks, compiled, bfloat16, the Wan VAE as
planes in float16, the scorer in float32, torch 2.11. With one draft of eight rejected, 32 draft steps take 1.37 s,
10 decodes 1.48, the scores of 96 frames 0.50, all contexts and encodes 0.56; a later block of the target's takes
1.42 s. An encode was not timed apart: 12.5 ms are taken.
"""
# Operations of the published VAE and of TAEHV, per pixel of a frame, to decode one latent frame after the first,
# and of ImageReward per pixel frame. Counted on their layers, a multiplication and an addition as two.
WAN_OPERATIONS = 33.93e6
TAE_OPERATIONS = 1.36e6
SCORE_OPERATIONS = 138e9


def pass_weights(presets: Mapping[str, Preset]) -> dict[str, float]:
    """Return `WEIGHTS` for models by role; their passes and decodes may be over fewer latent frames, or more."""
    frames = {role: preset.block_frames for role, preset in presets.items()}
    frames["decodes"] = frames["target"]
    shares = {name: frames.get(name.split("_")[0], WEIGHTED_FRAMES) / WEIGHTED_FRAMES for name in WEIGHTS}
    return {name: weight * shares[name] for name, weight in WEIGHTS.items()}


def operations(request: PlanRequest) -> dict[str, float]:
    """Return the operations of a denoising pass of each model, of a block's context, decode and scores."""
    frames = request.block_frames
    name, base = request.decoder
    decode = TAE_OPERATIONS if name == "tae" else WAN_OPERATIONS * (base / PUBLISHED_BASE) ** 2
    counted = {"decodes": frames * decode * request.pixels, "scores": 4 * frames * SCORE_OPERATIONS}
    for role, model in request.models.items():
        config = model.config
        preset = model.preset
        tokens = frame_tokens(config, request)
        once = pass_operations(config, preset.block_frames, kv_frames(preset), tokens)
        once += control_operations(config, model.control_blocks, preset.block_frames, tokens)
        counted[f"{role}_denoising"] = once
        counted[f"{role}_context"] = context_operations(config, preset, tokens)
    return counted


def pass_operations(config: WanConfig, frames: int, seen: int, tokens: int) -> float:
    """Return the operations of a pass over `frames` latent frames (`tokens` tokens each) that sees `seen`."""
    queries = frames * tokens
    linear = 12 * config.dim**2 + 4 * config.dim * config.ffn_dim
    attention = 4 * config.dim * (seen * tokens + config.text_len)
    return float(config.num_layers * queries * (linear + attention))


def control_operations(config: WanConfig, blocks: int, frames: int, tokens: int) -> float:
    """Return the operations of a control branch of `blocks` blocks in one pass; its tokens see their own frames."""
    if not blocks:
        return 0.0
    of_blocks = pass_operations(replace(config, num_layers=blocks), frames, frames, tokens)
    projected = 2 * config.dim * ((blocks + 1) * config.dim + CONTROL_CHANNELS * math.prod(config.patch_size))
    return of_blocks + frames * tokens * projected


def context_operations(config: WanConfig, preset: Preset, tokens: int) -> float:
    """Return the operations of the context passes before a block that has a full context."""
    block = preset.block_frames
    if preset.policy == "incremental":  # one pass over the newest block
        return pass_operations(config, block, kv_frames(preset), tokens)
    pieces = range(0, preset.context_frames, block)
    lasts = [min(first + block, preset.context_frames) for first in pieces]
    spans = zip(pieces, lasts, strict=True)
    return sum(pass_operations(config, last - first, last, tokens) for first, last in spans)


def context_passes(preset: Preset) -> int:
    """Return the number of context passes before a block."""
    return -(-preset.context_frames // preset.block_frames) if preset.policy == "recompute" else 1
