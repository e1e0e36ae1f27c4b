"""The case of the TAEHV golden: random weights, latents and frames; and which numbers of a result are kept.

Imported by the script that makes the golden through another program's class, and by the test that compares with it.
Needs NumPy alone.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SEED = 21
# Of a result this many numbers are kept, evenly spread, after the mean and the spread of all.
KEPT = 600
LATENTS, FRAMES = (1, 16, 5, 4, 6), (1, 9, 3, 32, 48)


def draw(name: str, shape: tuple[int, ...]) -> Array:
    stream = np.random.Generator(np.random.PCG64([SEED, zlib.crc32(name.encode())]))
    return stream.standard_normal(shape, dtype=np.float32)


def random_weight(name: str, shape: tuple[int, ...]) -> Array:
    """Draw one weight, scaled so that colours lie in [0, 1] and every layer shows in them."""
    if name == "decoder.22.bias":
        return np.float32(0.5) + np.float32(0.1) * draw(name, shape)
    if len(shape) == 1:
        return np.float32(0.2) * draw(name, shape)
    gain = 0.25 if name == "decoder.22.weight" else 0.7 if ".conv.4." in name else 1.2
    return draw(name, shape) * np.float32(gain / math.sqrt(math.prod(shape[1:])))


def latents() -> Array:
    return draw("latents", LATENTS)


def frames() -> Array:
    return np.float32(0.5) + np.float32(0.2) * draw("frames", FRAMES).clip(-2, 2)


def kept(result: Array) -> list[float]:
    flat = result.ravel()
    places = np.linspace(0, flat.size - 1, KEPT).astype(np.int64)
    return [round(float(x), 7) for x in (result.mean(), result.std(), *flat[places])]
