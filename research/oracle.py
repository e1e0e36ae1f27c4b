"""The oracle of the small world: how good a clip is, compared with the clip its prompt determines.

A clip that runs a little early or late is not a bad picture, so each frame is compared with the best moment within
half a second of its own. The time difference and the picture's quality are reported separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdvg_core.pocket.world import Scene

from .world import render_with_mask

REACH = 8
"""How many frames early or late a moment may be and still count as the same."""

BEST = 40.0
"""Decibels above which frames count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the oracle found in a clip of f pixel frames.

    `quality`: (f,) decibels, higher is better: the PSNR against the best moment, with equal weight for things and
    ground. `lag`: (f,) frames by which the clip is ahead (positive) or behind. `temporal_error`: (f - 1,) how far
    each change from frame to frame is from the true one, root mean square in levels of 255. `seams`: the first
    frames of blocks.
    """

    quality: Tensor
    lag: Tensor
    temporal_error: Tensor
    seams: tuple[int, ...]

    @property
    def seam_error(self) -> float:
        """How much larger the temporal error is at block borders than elsewhere, in levels; 0 without a border."""
        at_border = torch.zeros(len(self.temporal_error), dtype=torch.bool)
        at_border[[seam - 1 for seam in self.seams]] = True
        if not at_border.any() or at_border.all():
            return 0.0
        return float(self.temporal_error[at_border].mean() - self.temporal_error[~at_border].mean())


def judge(frames: Tensor, scene: Scene, seams: Sequence[int] = ()) -> Verdict:
    """Judge the whole clip of a scene, `f c h w` in [0, 1] from its first frame; `seams`: where blocks start."""
    count = len(frames)
    truth, errors = errors_by_lag(frames, scene)
    # Of moments that fit equally well, as when everything stands still, take the nearest.
    nearest = torch.arange(-REACH, REACH + 1).abs().argsort(stable=True)
    lag = nearest[errors[nearest].argmin(dim=0)]
    due = torch.arange(count)
    quality = (-10 * errors[lag, due].clamp(min=1e-12).log10()).clamp(max=BEST)
    shown = due + lag
    true_change = truth[shown[:-1] + 1] - truth[shown[:-1]]
    change_error = (frames.diff(dim=0) - true_change).square().mean(dim=(1, 2, 3)).sqrt() * 255
    return Verdict(quality, lag - REACH, change_error, tuple(seams))


def errors_by_lag(frames: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
    """Return what a scene shows from REACH frames early to REACH late, and `l f` errors of frames at every lag."""
    count = len(frames)
    truth, mask = render_with_mask(scene, torch.arange(-REACH, count + REACH, dtype=torch.float32).clamp(min=0))
    moments = [slice(first, first + count) for first in range(2 * REACH + 1)]
    return truth, torch.stack([weighted_error(frames, truth[moment], mask[moment]) for moment in moments])


def weighted_error(frames: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Return (f,) mean squared errors of frames `f c h w`; all things together weigh as much as the ground.

    `mask`: how much of each pixel a thing covers, `f 1 h w`.
    """
    error = (frames - truth).square().mean(dim=1, keepdim=True)
    on_things = (error * mask).sum(dim=(1, 2, 3)) / mask.sum(dim=(1, 2, 3)).clamp(min=1)
    on_ground = (error * (1 - mask)).sum(dim=(1, 2, 3)) / (1 - mask).sum(dim=(1, 2, 3)).clamp(min=1)
    return (on_things + on_ground) / 2
