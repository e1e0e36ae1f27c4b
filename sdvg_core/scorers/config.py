"""The sizes of an ImageReward checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..errors import BadInput
from .tokenizer import MAX_TOKENS

AS_PUBLISHED = "use the checkpoint as published"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRewardConfig:
    """Sizes of the three parts; the defaults are those of the published checkpoint.

    `head`: the linear layers of the reward head, each as its number in the file and its output width.
    """

    image_size: int = 224
    patch_size: int = 16
    vision_width: int = 1024
    vision_layers: int = 24
    vision_mlp: int = 4096
    vision_heads: int = 16
    vocabulary: int = 30524
    positions: int = 512
    text_width: int = 768
    text_layers: int = 12
    text_mlp: int = 3072
    text_heads: int = 12
    head: tuple[tuple[int, int], ...] = ((0, 1024), (2, 128), (4, 64), (6, 16), (7, 1))

    def __post_init__(self) -> None:
        for tower, width, heads in (
            ("vision", self.vision_width, self.vision_heads),
            ("text", self.text_width, self.text_heads),
        ):
            if heads < 1 or width % heads:
                key = f'config -> image_reward -> "{tower}_heads"'
                raise BadInput(f"{heads} {tower} heads do not divide {width}; correct {key} in the metadata")
        if self.image_size < 1 or not self.head or self.head[-1][1] != 1:
            raise BadInput(f"the image has {self.image_size} pixels, or the head no single number; {AS_PUBLISHED}")
        if self.positions < MAX_TOKENS:
            raise BadInput(f"there are positions for {self.positions} tokens, not {MAX_TOKENS}; {AS_PUBLISHED}")


def scorer_parameters(config: ImageRewardConfig) -> tuple[int, int]:
    """Return the numbers in both towers together, and in the head."""
    v, v_mlp, patch = config.vision_width, config.vision_mlp, config.patch_size
    t, t_mlp = config.text_width, config.text_mlp
    vision_layer = 4 * v * v + 2 * v * v_mlp + 9 * v + v_mlp
    text_layer = 6 * t * t + 2 * t * v + 2 * t * t_mlp + 15 * t + t_mlp
    vision = v * ((config.image_size // patch) ** 2 + 3 * patch**2 + 5) + config.vision_layers * vision_layer
    text = t * (config.vocabulary + config.positions + 2) + config.text_layers * text_layer
    widths = (t, *(width for _, width in config.head))
    return vision + text, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
