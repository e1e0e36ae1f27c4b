"""The cases of the ImageReward golden: sizes, random weights, a vocabulary and prompts.

Imported by the script that makes the golden through the original package, and by the test that compares with
it. Needs NumPy alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20
REAL_VOCABULARY = 30522

WORDS = """
an and at the is on in of over old low red sun fox run fall slow wide shot light floor hall
gold hill tower town rain roof snow dusk while say twice then leave facade naive cafe creme
"""

# Arguments of `ImageRewardConfig`; what is not said is as published. `narrow` has heads that are not 64 wide.
VISION = ("image_size", "patch_size", "vision_width", "vision_layers", "vision_mlp", "vision_heads")
SIZES = (*VISION, "positions", "text_width", "text_layers", "text_mlp", "text_heads")
CASES: Mapping[str, Mapping[str, int]] = {
    "tiny": dict(zip(SIZES, (48, 8, 192, 3, 256, 3, 64, 128, 2, 256, 2), strict=True)),
    "narrow": dict(zip(SIZES, (64, 16, 40, 2, 96, 5, 40, 48, 2, 80, 4), strict=True)),
    "full": {},
}

PROMPTS = (
    "A red fox runs over the snow, slowly.",
    "TOWERS and Hills at dusk: the sun is low (golden light)",
    "",
    "Café façade, naïve crème brûlée",
    "猫 on a roof 🙂 in the rain 東京",
    "an old [MASK] says [ENC] twice [SEP] and then [DEC] leaves",
    "x" * 101 + " fox " + "y" * 100,
    "a wide and slow shot of the golden hills and towers over the old town while the red sun falls low and the"
    " rain runs over the roof and the fox runs over the snow and the light leaves the floor of the old hall",
)

BLOCKS = {"landscape": (3, 480, 832), "portrait": (2, 832, 480)}


def block_frames(block: str) -> Pixels:
    return synthetic_frames(*BLOCKS[block])


def vocabulary(case: str) -> list[str]:
    """Return the tokens of the case's `vocab.txt`; in the full case, filled up to the published number."""
    tokens = list(_tokens())
    if case == "full":
        tokens += [f"[unused{i}]" for i in range(REAL_VOCABULARY - len(tokens))]
    return tokens


def _tokens() -> Iterable[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    yield from "0123456789.,:;!?()[]'\"-猫東"
    yield from letters
    yield from (f"##{letter}" for letter in letters)
    yield from WORDS.split()
    yield from ("##ly", "##en", "##ed", "##ing", "##lee")


def random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Return a weight for every name, each from a stream of its own: the order of names does not matter."""
    return {name: random_weight(name, shape) for name, shape in shapes.items()}


def random_weight(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw one weight, scaled so that image, prompt and mask all show in the score.

    Embeddings are small, as in BERT and in ViT: the epsilon of the first norm counts. Attention is sharp.
    """
    stream = np.random.Generator(np.random.PCG64([SEED, zlib.crc32(name.encode())]))
    draw = stream.standard_normal(shape, dtype=np.float32)
    if ".weight" in name and len(shape) == 1:
        return 1 + np.float32(0.1) * draw
    return draw * np.float32(_scale(name, shape))


def _scale(name: str, shape: tuple[int, ...]) -> float:
    if "embed" in name or "cls_token" in name:
        # The sum over a patch is larger than one pixel by the root of the patch's size.
        return 0.01 / math.sqrt(math.prod(shape[1:])) if "proj.weight" in name else 0.01
    if name.endswith(".bias"):
        return 0.05
    sharpened = {
        ".query": 1.7,
        ".key": 1.7,
        ".attention.self.value": 2.0,
        ".crossattention.output.dense": 0.4,
        ".qkv": 1.5,
    }
    gain = next((g for part, g in sharpened.items() if part in name), 1.0)
    return gain / math.sqrt(math.prod(shape[1:]))


def fingerprint(weights: Mapping[str, Any]) -> int:
    """Return a checksum of the beginning of every weight, to tell changed weights from a changed scorer."""
    mark = 0
    for name in sorted(weights):
        mark = zlib.crc32(weights[name].ravel()[:64].tobytes(), mark)
    return mark


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
