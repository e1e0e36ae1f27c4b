"""Bytes of a run's parts. Weights, keys, values and the VAE's state are counted exactly from shapes.

Temporary buffers of a step were counted at the published sizes on tensors without memory, as the most bytes alive
at once (a test counts again). Workspaces of the device's own libraries are not included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..causal_wan.cache import SCALE
from ..causal_wan.config import WanConfig, control_shapes, wan_shapes
from ..causal_wan.generator import REMEMBERED_PROMPTS
from ..causal_wan.presets import Preset
from ..scorers.blip import scorer_parameters
from .decoders import ENCODE_VALUES, PUBLISHED_BASE, decode_state_bytes, decode_working_bytes, decoder_bytes
from .request import PATCH, VAE_STRIDE, PlanRequest

GB = 10**9
FLOAT32 = 4
# Alive at once in a pass, in model widths per token: in attention, and in the feed-forward besides its inner layer
# and that layer's activation. ComfyUI 0.33 keeps the inner layer while it writes the output: one width more.
ATTENTION_WIDTHS, FEED_FORWARD_WIDTHS = 11.01, 6.01
# The same besides a layer's keys and values of all frames it sees, if they are read back from fp8.
READ_WIDTHS = 5.01
# The same if keys are rotated as they are read, the pass's own number of frames at a time.
TURN_WIDTHS = 10.01
# The same while a control block runs: the model's own tokens, and the embedded control.
CONTROL_WIDTHS = 2.0
# Alive at once while a frame is scored: bytes per pixel, of which 13 are of the block before and the windows' first
# frames, and in the network, feed-forward widths per token.
SCORE_BYTES, SCORE_WIDTHS = 75, 4.15


def wan_bytes(config: WanConfig, itemsize: int, *, fp8: bool = False) -> int:
    """Return the bytes of a transformer's weights. `fp8`: its linear layers take one byte per weight."""
    return _bytes_under("", config, itemsize, fp8)


def layer_bytes(config: WanConfig, itemsize: int, *, fp8: bool = False) -> int:
    """Return the bytes of one transformer block's weights."""
    return _bytes_under("blocks.0.", config, itemsize, fp8)


def _bytes_under(prefix: str, config: WanConfig, itemsize: int, fp8: bool) -> int:
    total = 0
    for name, shape in wan_shapes(config).items():
        linear = name.endswith(".weight") and len(shape) == 2
        total += math.prod(shape) * (1 if fp8 and linear else itemsize) * name.startswith(prefix)
    return total


def kv_frames(preset: Preset) -> int:
    """Return the number of latent frames whose keys and values a model keeps while it generates a block."""
    return preset.context_frames + preset.block_frames if preset.policy == "recompute" else preset.window


def frame_tokens(width: int, height: int) -> int:
    """Return the tokens of one latent frame of a video of that size in pixels."""
    return (width // VAE_STRIDE // PATCH) * (height // VAE_STRIDE // PATCH)


def image_bytes(width: int, height: int, latent_frames: int) -> int:
    """Return the bytes of a video as ComfyUI's IMAGE: every frame in float32, however it is saved."""
    return (4 * latent_frames - 3) * height * width * 3 * 4


def kv_bytes(config: WanConfig, frames: int, tokens: int, itemsize: int, *, fp8: bool = False) -> int:
    """Return the bytes of a self-attention cache: keys and values of `frames` frames of `tokens` tokens.

    `fp8`: they take one byte each, plus a scale per head.
    """
    of_token = config.dim + SCALE.itemsize * config.num_heads if fp8 else config.dim * itemsize
    return 2 * config.num_layers * frames * tokens * of_token


def text_kv_bytes(config: WanConfig, itemsize: int) -> int:
    """Return the bytes of one prompt's cross-attention keys and values."""
    return 2 * config.num_layers * config.text_len * config.dim * itemsize


def pass_bytes(
    config: WanConfig, frames: int, tokens: int, itemsize: int, *, read: int = 0, turned: int = 0
) -> int:
    """Return the bytes of temporary buffers in a forward pass over `frames` latent frames.

    `read`: the number of latent frames with keys and values read back from fp8, one layer at a time; `turned`: with
    keys rotated then.
    """
    widths = max(ATTENTION_WIDTHS * config.dim, FEED_FORWARD_WIDTHS * config.dim + 2 * config.ffn_dim)
    if read:
        widths = max(widths, (READ_WIDTHS + 2 * read / frames) * config.dim)
    if turned:
        widths = max(widths, (TURN_WIDTHS + (2 * read + turned) / frames) * config.dim)
    return math.ceil(frames * tokens * widths) * itemsize


def control_working_bytes(config: WanConfig, frames: int, tokens: int, itemsize: int) -> int:
    """Return the bytes of temporary buffers that a control adds to a pass over `frames` latent frames."""
    return math.ceil(frames * tokens * CONTROL_WIDTHS * config.dim) * itemsize


def weight_bytes(request: PlanRequest, *, fp8: bool) -> dict[str, int]:
    """Return the bytes of the weights of every model that the route may load. `fp8`: the target's linear layers."""
    itemsize = request.itemsize("dtype")
    decoders = {name: decoder_bytes(*of, request.itemsize("vae_dtype")) for name, of in request.decoders.items()}
    towers, head = scorer_parameters(request.reward)
    weights = {
        "target": wan_bytes(request.target, itemsize, fp8=fp8),
        "drafter": wan_bytes(request.drafter, itemsize),
        **decoders,
        # The head is float32 whatever the towers are.
        "scorer": towers * request.itemsize("reward_dtype") + head * FLOAT32,
    }
    modules = {
        f"{role} control": sum(map(math.prod, control_shapes(request.models[role][0], blocks).values())) * itemsize
        for role, blocks in request.control.items()
    }
    return {name: size for name, size in (weights | modules).items() if name.split()[0] in request.parts}


def state_bytes(request: PlanRequest) -> dict[str, int]:
    """Return the bytes held besides weights: the keys and values of both models, and one state of each decoder."""
    itemsize, tokens = request.itemsize("dtype"), frame_tokens(request.width, request.height)
    held: dict[str, int] = {}
    for name, (config, preset) in request.models.items():
        frames = kv_frames(preset)
        if name == "drafter" and preset.policy == "incremental":
            # A draft in several blocks may be dropped: what it overwrites is copied.
            frames += (request.pieces_of(name) - 1) * preset.block_frames
        held[f"{name} keys and values"] = kv_bytes(config, frames, tokens, itemsize, fp8=request.execution.kv_fp8)
        prompts = min(request.prompts, REMEMBERED_PROMPTS)
        layers = 1 + request.control.get(name, 0) / config.num_layers
        held[f"{name} text keys and values"] = int(prompts * text_kv_bytes(config, itemsize) * layers)
    for name, of in request.decoders.items():
        held[f"{name} state"] = decode_state_bytes(*of, request.pixels, request.itemsize("vae_dtype"))
    return held


def working_bytes(request: PlanRequest, *, fp8: bool) -> Mapping[str, int]:
    """Return the temporary buffers of each step: drafting, decoding, scoring, generating with the target.

    With a judge, decoding is the judge's, and delivering the VAE's.
    """
    tokens, itemsize = frame_tokens(request.width, request.height), request.itemsize("dtype")
    vae, layers = request.itemsize("vae_dtype"), request.vae_layers
    passes = {
        name: pass_bytes(
            config,
            kv_frames(preset) if preset.recache and request.prompts > 1 else preset.block_frames,
            tokens,
            itemsize,
            read=kv_frames(preset) if request.execution.kv_fp8 else 0,
            turned=kv_frames(preset) if preset.rotates_later else 0,
        )
        + (control_working_bytes(config, preset.block_frames, tokens, itemsize) if name in request.control else 0)
        for name, (config, preset) in request.models.items()
    }
    if fp8:  # one weight at a time is cast up
        config = request.target
        passes["target"] += max(config.dim, config.ffn_dim) * config.dim * itemsize
    encode = int(ENCODE_VALUES[layers] * request.vae_base / PUBLISHED_BASE * request.pixels) * vae
    for name, (_, preset) in request.models.items():
        if preset.anchor_horizon:  # the window's first frame is encoded when the cache already exists
            passes[name] = max(passes[name], encode)
    decoding = {
        name: decode_working_bytes(*of, request.pixels, vae, layers) for name, of in request.decoders.items()
    }
    frames = 4 * request.block_frames
    patches = (request.reward.image_size // request.reward.patch_size) ** 2 + 1
    network = int(SCORE_WIDTHS * patches * request.reward.vision_mlp) * frames * request.itemsize("reward_dtype")
    return {
        "draft": passes["drafter"],
        "decode": decoding["judge" if request.judging else "vae"],
        "score": max(SCORE_BYTES * frames * request.pixels, network),
        "target": passes["target"],
        **({"deliver": decoding["vae"]} if request.judging else {}),
    }
