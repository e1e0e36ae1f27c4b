"""TAEHVs of random weights, and what one makes of a whole clip by the description of its layers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from sdvg_core.decoders.taehv import TaehvCodec, taehv_from_weights

# Every width is another, so that none can stand in for the next.
DECODER = (14, 12, 10, 6)
ENCODER = (6, 8, 10, 12)
PUBLISHED = {"decoder": (256, 128, 64, 64), "encoder": (64, 64, 64, 64)}
# The number of a stage's first layer, and how many frames it makes of one, or joins into one.
DECODER_STAGES = ((3, 1), (9, 2), (15, 2))
ENCODER_STAGES = ((2, 2), (7, 2), (12, 1))


def tae_shapes(decoder=DECODER, encoder=ENCODER, latents=16) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a TAEHV's tensors. `encoder`: None to leave that half out."""
    a, b, c, d = decoder
    shapes = {"decoder.1.weight": (a, latents, 3, 3), "decoder.1.bias": (a,)}
    for (first, growth), width, following in zip(DECODER_STAGES, (a, b, c), (b, c, d), strict=True):
        shapes |= _memory_blocks("decoder", first, width)
        shapes[f"decoder.{first + 4}.conv.weight"] = (width * growth, width, 1, 1)
        shapes[f"decoder.{first + 5}.weight"] = (following, width, 3, 3)
    shapes |= {"decoder.22.weight": (3, d, 3, 3), "decoder.22.bias": (3,)}
    if encoder is None:
        return shapes
    a, b, c, d = encoder
    shapes |= {"encoder.0.weight": (a, 3, 3, 3), "encoder.0.bias": (a,)}
    for (first, joined), width, following in zip(ENCODER_STAGES, (a, b, c), (b, c, d), strict=True):
        shapes[f"encoder.{first}.conv.weight"] = (width, width * joined, 1, 1)
        shapes[f"encoder.{first + 1}.weight"] = (following, width, 3, 3)
        shapes |= _memory_blocks("encoder", first + 2, following)
    return shapes | {"encoder.17.weight": (latents, d, 3, 3), "encoder.17.bias": (latents,)}


def _memory_blocks(half: str, first: int, width: int) -> dict[str, tuple[int, ...]]:
    blocks = [f"{half}.{first + n}.conv" for n in range(3)]
    layers = {f"{block}.{n}": (width, width * (2 if n == 0 else 1), 3, 3) for block in blocks for n in (0, 2, 4)}
    weights = {f"{layer}.weight": shape for layer, shape in layers.items()}
    return weights | {f"{layer}.bias": (width,) for layer in layers}


def random_tae(shapes: Mapping[str, tuple[int, ...]] | None = None, dtype=torch.float32) -> dict[str, Tensor]:
    """Return weights under which colours lie in [0, 1] and every layer matters, each drawn by its name."""
    return {name: _weight(name, shape).to(dtype) for name, shape in (shapes or tae_shapes()).items()}


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    draw = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if name == "decoder.22.bias":
        return 0.5 + 0.1 * draw
    if len(shape) == 1:
        return 0.2 * draw
    gain = {"22.weight": 0.25, "17.weight": 0.5}.get(name.partition(".")[2], 0.7 if ".conv.4." in name else 1.2)
    return draw * (gain / math.sqrt(math.prod(shape[1:])))


def codec_of(weights: Mapping[str, Tensor], kind="taew2_1", **options) -> TaehvCodec:
    return taehv_from_weights(weights, kind=kind, **options)


def whole_decode(weights: Mapping[str, Tensor], latents: Tensor) -> Tensor:
    """Decode a whole clip `1 c t h w` by the description of the layers: each takes all frames at once."""
    x = (latents[0].movedim(1, 0) / 3).tanh() * 3
    x = F.conv2d(x, weights["decoder.1.weight"], weights["decoder.1.bias"], padding=1).relu()
    for first, growth in DECODER_STAGES:
        for layer in range(first, first + 3):
            x = _remember(weights, f"decoder.{layer}.conv", x)
        x = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        x = F.conv2d(x, weights[f"decoder.{first + 4}.conv.weight"])
        x = x.reshape(-1, x.shape[1] // growth, *x.shape[2:])
        x = F.conv2d(x, weights[f"decoder.{first + 5}.weight"], padding=1)
    x = F.conv2d(x.relu(), weights["decoder.22.weight"], weights["decoder.22.bias"], padding=1)
    return x[3:].clamp(0, 1)[None]


def whole_encode(weights: Mapping[str, Tensor], frames: Tensor) -> Tensor:
    """Encode a whole clip of frames `1 f c h w` by the description of the layers."""
    x = torch.cat([frames[0], frames[0, -1:].repeat(3, 1, 1, 1)])
    x = F.conv2d(x, weights["encoder.0.weight"], weights["encoder.0.bias"], padding=1).relu()
    for first, joined in ENCODER_STAGES:
        x = F.conv2d(x.reshape(-1, x.shape[1] * joined, *x.shape[2:]), weights[f"encoder.{first}.conv.weight"])
        x = F.conv2d(x, weights[f"encoder.{first + 1}.weight"], padding=1, stride=2)
        for layer in range(first + 2, first + 5):
            x = _remember(weights, f"encoder.{layer}.conv", x)
    x = F.conv2d(x, weights["encoder.17.weight"], weights["encoder.17.bias"], padding=1)
    return x.movedim(0, 1)[None]


def _remember(weights: Mapping[str, Tensor], block: str, x: Tensor) -> Tensor:
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    change = torch.cat([x, before], dim=1)
    for layer in (0, 2, 4):
        change = change.relu() if layer else change
        change = F.conv2d(change, weights[f"{block}.{layer}.weight"], weights[f"{block}.{layer}.bias"], padding=1)
    return (change + x).relu()
