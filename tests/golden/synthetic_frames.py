"""Pixel frames that look like something, from formulas alone: the same on every machine, up to rounding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]


def synthetic_frames(count: int, height: int, width: int) -> Pixels:
    """Return `(count, 3, height, width)` float32 in [0, 1], not rounded to 8 bits.

    A sun over hills, striped towers and a tiled floor. From frame to frame the camera moves, the light changes
    and the texture grows coarser, so that a scorer has something to tell apart.
    """
    return np.stack([_scene(i, height, width) for i in range(count)])


def _scene(i: int, height: int, width: int) -> Pixels:
    y, x = np.meshgrid(np.arange(height) / height, np.arange(width) / height, indexing="ij")
    x = x + 0.37 * i
    dusk = 0.5 + 0.5 * np.sin(1.9 * i)
    image = _sky(y, dusk)
    image = _put(
        image, (x - 0.37 * i - 0.5) ** 2 + (y - 0.25) ** 2 < 0.01 + 0.01 * i, (1.0, 0.85 - 0.4 * dusk, 0.3)
    )
    image = _put(image, y > 0.55 + 0.08 * np.sin(5 * x) + 0.03 * np.sin(17 * x), (0.15, 0.45 - 0.2 * dusk, 0.2))
    stripes = 0.5 + 0.5 * np.sign(np.sin(190 * y / (1 + 0.5 * i)))
    image = _put(image, (np.sin(9 * x) > 0.72) & (y > 0.33), (0.6 * stripes, 0.5 * stripes + 0.1, 0.55))
    depth = 1 / np.maximum(y - 0.6, 0.02)
    tiles = 0.5 + 0.5 * np.sign(np.sin(4 * (x - 1) * depth) * np.sin(9 * depth))
    image = _put(image, y > 0.75, (0.9 * tiles, 0.8 * tiles, 0.7 * tiles + 0.2))
    return np.clip(image + 0.12 * (_grain(i, height, width) - 0.5), 0, 1).astype(np.float32)


def _sky(y: NDArray[np.float64], dusk: float) -> NDArray[np.float64]:
    return np.stack([0.3 + 0.6 * dusk * y, 0.5 + 0.3 * y, 0.95 - 0.5 * dusk * y])


def _put(image: NDArray[np.float64], where: NDArray[np.bool_], colour: tuple[object, ...]) -> NDArray[np.float64]:
    paint = np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), where.shape) for c in colour])
    return np.where(where, paint, image)


def _grain(i: int, height: int, width: int) -> NDArray[np.float64]:
    """Return noise from an integer hash of the pixel's place; whole cells of 1 + i pixels share a value."""
    y, x = np.meshgrid(np.arange(height) // (1 + i), np.arange(width) // (1 + i), indexing="ij")
    mixed = (x * 73856093 ^ y * 19349663 ^ (i + 1) * 83492791) & 0xFFFFFF
    mixed = (mixed * 1103515 + 12345) & 0xFFFFFF
    return (mixed >> 8) / 65535
