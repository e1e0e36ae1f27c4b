"""Preprocess pixel frames for ImageReward, pixel for pixel like Pillow, on the frames' device.

The reference uses 8-bit Pillow images, whose conventions (truncation to 8 bits, width before height, rounding after
each pass) change scores more than the resampler does. So we compute them in int32 rather than use torch's resize;
Pillow itself would need every frame on the CPU.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..devices.device import begin_upload

# CLIP's normalisation, in units of [0, 1].
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

# Pillow's resampling weights are multiples of 2^-22.
PRECISION = 22
ONE = 1 << PRECISION

REMEMBERED_DEVICES = 2
REMEMBERED_TAPS = 4
"""Width and height of two video sizes; each takes some 30 KB."""


def preprocess(frames: Tensor, size: int) -> Tensor:
    """Resize, crop and normalise frames `f c h w` in [0, 1] to squares `f c size size`, float32."""
    squares = cut_squares(to_bytes(frames), size) / 255
    mean, std = _normalisation(frames.device)
    return (squares - mean) / std


@lru_cache(REMEMBERED_DEVICES)
def _normalisation(device: torch.device) -> tuple[Tensor, ...]:
    """Return CLIP's mean and deviation by channel, `c 1 1`, on a device; memoised, as the copy waits."""
    return tuple(begin_upload(torch.tensor(values).view(3, 1, 1), device) for values in (MEAN, STD))


def to_bytes(frames: Tensor) -> Tensor:
    """Quantise [0, 1] to 0..255, int32, by truncation as in the reference; NaN becomes 0."""
    return (frames.float() * 255).nan_to_num(0.0).clamp(0, 255).int()


def cut_squares(pixels: Tensor, size: int) -> Tensor:
    """Resize int32 pixels `f c h w`, and crop the centre: `f c size size`."""
    h, w = pixels.shape[-2:]
    short = min(h, w)
    pixels = resize(pixels, int(size * h / short), int(size * w / short))
    h, w = pixels.shape[-2:]
    y = round((h - size) / 2)
    x = round((w - size) / 2)
    return pixels[..., y : y + size, x : x + size]


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Resize int32 pixels `... h w` like Pillow's bicubic: width first, rounded to 8 bits after each pass."""
    return _resize_height(_resize_height(pixels.mT, width).mT, height)


def _resize_height(pixels: Tensor, height: int) -> Tensor:
    # Integer sums are exact, so all devices agree with Pillow on every pixel.
    rows, weights = _taps_on(pixels.device, pixels.shape[-2], height)
    taps = pixels.index_select(-2, rows).unflatten(-2, (-1, height))  # ... taps height w
    total: Tensor = taps.mul_(weights).sum(dim=-3, dtype=torch.int32)
    total += ONE // 2
    total >>= PRECISION
    return total.clamp_(0, 255)


@lru_cache(REMEMBERED_TAPS)
def _taps_on(device: torch.device, source: int, target: int) -> tuple[Tensor, Tensor]:
    """Return the taps and weights of a resize on a device, memoised: `(taps target)` and `taps target 1`."""
    rows, weights = _bicubic_taps(source, target)
    return begin_upload(rows.flatten(), device), begin_upload(weights[..., None], device)


def _bicubic_taps(source: int, target: int) -> tuple[Tensor, Tensor]:
    """Return the source pixels of each target pixel, `(taps, target)`, and their weights times ONE.

    As in Pillow, the kernel is stretched for downscaling (antialiasing), and cut at the edges.
    """
    stretch = max(source / target, 1.0)
    centre = (torch.arange(target, dtype=torch.float64) + 0.5) * (source / target)
    first = (centre - 2 * stretch + 0.5).int().clamp(min=0)
    stop = (centre + 2 * stretch + 0.5).int().clamp(max=source)
    places = first + torch.arange(int((stop - first).max()))[:, None]
    weights = _bicubic((places - centre + 0.5) / stretch) * (places < stop)
    weights = weights / weights.sum(dim=0)
    return places.clamp(max=source - 1), (weights * ONE + 0.5 * weights.sign()).int()


def _bicubic(x: Tensor) -> Tensor:
    """Evaluate Keys' cubic convolution kernel with a = -1/2."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
