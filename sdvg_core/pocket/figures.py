"""What the oracle says of a whole clip, in numbers: for studies and for the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from .oracle import judge
from .presence import at_its_place
from .world import Scene


def figures_of(frames: Tensor, scene: Scene, seams: Sequence[int]) -> Mapping[str, float]:
    """Return means over the frames of a clip, `f c h w` in [0, 1], and some of the last or the worst block.

    `seams`: the first frames of blocks, but the first one's. Qualities in decibels, lag in frames; the others are
    shares of the frames in which the mover is due, NaN if there is none.
    """
    verdict = judge(frames, scene)
    placed = at_its_place(frames, scene).double()  # in single precision, 4 of 12 frames are more than a third
    blocks = [slice(first, last) for first, last in pairwise((0, *seams, len(frames)))]
    qualities = [float(verdict.quality[block].mean()) for block in blocks]
    return {
        "quality": float(verdict.quality.mean()),
        "worst_block_quality": min(qualities),
        "last_block_quality": qualities[-1],
        "lag": float(verdict.lag.abs().float().mean()),
        "at_its_place": float(placed.nanmean()),
        "last_block_at_its_place": float(placed[blocks[-1]].nanmean()),
    }
