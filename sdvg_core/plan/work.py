"""Operations of a block (a multiplication and an addition count as two), and their seconds at given rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..causal_wan.config import WanConfig
from ..causal_wan.presets import Preset
from ..decoders import DecoderName
from ..engine.control import CHANNELS
from .request import PUBLISHED_BASE, PlanRequest
from .sizes import frame_tokens, kv_frames

# The published VAE, per pixel of a frame: decoding one latent frame after the first, and encoding one pixel frame.
# ImageReward, per pixel frame. Counted on their layers.
DECODE_OPERATIONS, ENCODE_OPERATIONS, SCORE_OPERATIONS = 33.93e6, 6.81e6, 138e9
# The clip's first latent frame is a single pixel frame and takes this share of a later one's work.
FIRST_FRAME = 0.32
# Seconds for 81 frames at 480p on an H100, over the Wan VAE's 5.5 (LightX2V's figures). LightVAE has a sixteenth of
# the operations, but is bound by memory traffic.
SHARE_OF_SECONDS: Mapping[DecoderName, float] = {"wan": 1.0, "lightvae": 2.1 / 5.5, "tae": 0.25 / 5.5}


def pass_operations(config: WanConfig, frames: int, seen: int, tokens: int) -> float:
    """Return the operations of a pass over `frames` latent frames (`tokens` tokens each) that sees `seen`."""
    queries, keys = frames * tokens, seen * tokens
    linear = 12 * config.dim**2 + 4 * config.dim * config.ffn_dim
    attention = 4 * config.dim * (keys + config.text_len)
    return float(config.num_layers * queries * (linear + attention))


def control_operations(config: WanConfig, blocks: int, frames: int, tokens: int) -> float:
    """Return the operations of a control branch of `blocks` blocks in one pass; its tokens see their own frames."""
    if not blocks:
        return 0.0
    of_blocks = pass_operations(replace(config, num_layers=blocks), frames, frames, tokens)
    projected = 2 * config.dim * ((blocks + 1) * config.dim + CHANNELS * math.prod(config.patch_size))
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


def block_operations(
    config: WanConfig, preset: Preset, steps: int, tokens: int, *, first: bool = False, control: int = 0
) -> float:
    """Return the operations of generating a block. `first`: the clip's first one, which has no context.

    `control`: the blocks of its control module, which runs in every denoising pass.
    """
    seen = preset.block_frames if first else kv_frames(preset)
    once = pass_operations(config, preset.block_frames, seen, tokens)
    once += control_operations(config, control, preset.block_frames, tokens)
    return steps * once + (0.0 if first else context_operations(config, preset, tokens))


def context_passes(preset: Preset) -> int:
    """Return the number of context passes before a block."""
    return -(-preset.context_frames // preset.block_frames) if preset.policy == "recompute" else 1


def decode_operations(request: PlanRequest, *, first: bool = False) -> float:
    """Return the operations of decoding a block."""
    frames = request.block_frames - (1 - FIRST_FRAME if first else 0)
    return frames * DECODE_OPERATIONS * request.pixels * (request.vae_base / PUBLISHED_BASE) ** 2


def decode_seconds(request: PlanRequest, decoder: DecoderName, *, first: bool = False) -> float:
    """Return the seconds of decoding a block. `first`: the clip's first one."""
    request = request if decoder == "wan" else replace(request, vae_base=PUBLISHED_BASE)
    return SHARE_OF_SECONDS[decoder] * decode_operations(request, first=first) / request.rates.vae


def step_seconds(
    request: PlanRequest, *, fp8: bool, copying: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the seconds of each step of a block, and of the first block's.

    `copying`: seconds of copying in every pass, by transformer, none of it hidden behind the pass. `drafter
    begins` and `target finishes`: the two parts of a block that is handed over.
    """
    copied = copying or {}
    drafted = request.steps_of("drafter")
    # In every pass, fp8 weights are read, written in the wider dtype, and read again.
    cast = 3 * request.target.parameters / request.rates.memory if fp8 else 0.0

    def generating(role: str, *, first: bool = False, skipped: int = 0) -> float:
        """Return the seconds in which a model makes a block, and its contexts; `skipped` steps are the other's."""
        more = copied.get(role, 0.0) + (cast if role == "target" else 0.0)
        own, sub_blocks = request.steps_of(role), request.count_sub_blocks(role)
        begun = _own_block(request, role, request.steps_of(role, first=first) - skipped, more, first=first)
        return begun + (sub_blocks - 1) * _own_block(request, role, own, more)

    return {
        "decode": decode_seconds(request, request.vae),
        "first decode": decode_seconds(request, request.vae, first=True),
        "score": 4 * request.block_frames * SCORE_OPERATIONS / request.rates.scorer,
        **{role: generating(role) for role in request.models},
        **{f"first {role}": generating(role, first=True) for role in request.models},
        "drafter begins": generating("drafter", skipped=drafted - request.handover),
        "target finishes": generating("target", skipped=request.handover),
    }


def encode_seconds(request: PlanRequest) -> float:
    """Return the seconds of encoding one frame."""
    operations = ENCODE_OPERATIONS * request.pixels * (request.vae_base / PUBLISHED_BASE) ** 2
    return SHARE_OF_SECONDS[request.vae] * operations / request.rates.vae


def clip_seconds(request: PlanRequest) -> float:
    """Return the seconds of encoding the clip that is restyled, if one is."""
    frames = 4 * request.block_frames * request.blocks - 3
    return frames * encode_seconds(request) if request.strength else 0.0


def _own_block(request: PlanRequest, role: str, steps: int, more: float, *, first: bool = False) -> float:
    """Return the seconds of some denoising steps of a block of the model's own size, and of its context.

    `first`: the clip's first one. `more`: in every pass, besides its operations.
    """
    rates, (config, preset) = request.rates, request.models[role]
    tokens, control = frame_tokens(config, request), request.control.get(role, 0)
    work = block_operations(config, preset, steps, tokens, first=first, control=control)
    passes = steps + (0 if first else context_passes(preset))
    anchor = encode_seconds(request) if preset.policy == "recompute" and not first else 0.0
    return work / rates.transformer + passes * more + anchor
