"""How far the colours step where one shot or clip of a film follows another, and how far each is from the first.

Whether a cut should be seen is the artist's to say; the figures tell which join is another than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

LEVELS = 255
CONTRAST = 3
"""Column of the contrast, after red, green and blue."""


def levels_of(frames: Tensor) -> Tensor:
    """Return the mean of red, green and blue of each frame, and its contrast: `f 4`, in levels of 255.

    `frames`: `1 f c h w` in [0, 1]. The contrast is the standard deviation of the pixels' brightness.
    """
    pixels = frames[0].float().flatten(2) * LEVELS
    contrast = pixels.mean(dim=1).std(dim=1, unbiased=False)
    return torch.cat((pixels.mean(dim=2), contrast[:, None]), dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotJoin:
    """The step to a shot or clip from the one before it, in levels of 255.

    `brightness`, `contrast`: from the last frame before to the first one after. `usual_brightness`,
    `usual_contrast`: the median step within the two shots. `from_first`: the largest difference of the shot's mean
    red, green or blue from the first shot's.
    """

    brightness: float
    contrast: float
    usual_brightness: float
    usual_contrast: float
    from_first: float

    def __str__(self) -> str:
        brightness = f"brightness {self.brightness:.1f} (usually {self.usual_brightness:.1f})"
        return f"{brightness}, contrast {self.contrast:.1f} ({self.usual_contrast:.1f})"

    def as_dict(self) -> Mapping[str, float]:
        """Return it as JSON values."""
        return {name: round(getattr(self, name), 2) for name in self.__slots__}


def joins(shots: Sequence[Tensor]) -> list[ShotJoin]:
    """Return the join to each shot but the first. `shots`: by shot, what `levels_of` returns of its frames."""
    figures = []
    for before, after in pairwise(shots):
        step = _steps(torch.cat((before[-1:], after[:1])))[0]
        within = torch.cat((_steps(before), _steps(after)))
        usual = within.median(dim=0).values if len(within) else torch.zeros(2)
        colours = (after.mean(dim=0) - shots[0].mean(dim=0))[:CONTRAST].abs().max()
        figures.append(
            ShotJoin(
                brightness=step[0].item(),
                contrast=step[1].item(),
                usual_brightness=usual[0].item(),
                usual_contrast=usual[1].item(),
                from_first=colours.item(),
            )
        )
    return figures


def _steps(levels: Tensor) -> Tensor:
    """Return the steps of brightness and contrast from frame to frame, `f - 1, 2`."""
    pairs = torch.stack((levels[:, :CONTRAST].mean(dim=1), levels[:, CONTRAST]), dim=1)
    return pairs.diff(dim=0).abs()
