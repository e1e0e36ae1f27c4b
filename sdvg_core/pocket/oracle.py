"""The oracle of the small world: how good a clip is, compared with the clip that its prompt determines.

A clip that runs a little early or late is not a bad picture, so each frame is compared with the best moment within
half a second of its own. The time difference and the picture's quality are reported separately.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .renderer import render_with_mask
from .world import Scene

REACH = 8
"""How many frames early or late a moment of a clip may be and still count as the same."""
BEST = 40.0
"""Decibels above which frames count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the oracle found in a clip of f pixel frames.

    `quality`: (f,) decibels, higher is better: the PSNR against the best moment, with equal weight for things and
    ground. `lag`: (f,) frames by which the clip is ahead (positive) or behind.
    """

    quality: Tensor
    lag: Tensor


def judge(frames: Tensor, scene: Scene) -> Verdict:
    """Judge the whole clip of a scene, `f c h w` in [0, 1] from its first frame."""
    errors = errors_by_lag(frames, scene)
    # Of moments that fit equally well, as when everything stands still, take the nearest.
    nearest = torch.arange(-REACH, REACH + 1).abs().argsort(stable=True)
    lag = nearest[errors[nearest].argmin(dim=0)]
    quality = (-10 * errors[lag, torch.arange(len(frames))].clamp(min=1e-12).log10()).clamp(max=BEST)
    return Verdict(quality, lag - REACH)


def errors_by_lag(frames: Tensor, scene: Scene) -> Tensor:
    """Return the errors of frames at every lag from REACH frames early to REACH late: `l f`."""
    count = len(frames)
    truth, mask = render_with_mask(scene, torch.arange(-REACH, count + REACH, dtype=torch.float32).clamp(min=0))
    moments = [slice(first, first + count) for first in range(2 * REACH + 1)]
    return torch.stack([weighted_error(frames, truth[moment], mask[moment]) for moment in moments])


def weighted_error(frames: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Return (f,) mean squared errors of frames `f c h w`; all things together weigh as much as the ground.

    `mask`: how much of each pixel a thing covers, `f 1 h w`.
    """
    error = (frames - truth).square().mean(dim=1, keepdim=True)
    on_things = (error * mask).sum(dim=(1, 2, 3)) / mask.sum(dim=(1, 2, 3)).clamp(min=1)
    on_ground = (error * (1 - mask)).sum(dim=(1, 2, 3)) / (1 - mask).sum(dim=(1, 2, 3)).clamp(min=1)
    return (on_things + on_ground) / 2
