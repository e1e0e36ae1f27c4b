"""The oracle of the small world: how good a clip is, compared with the clip its prompt determines.

A clip that runs a little early or late is not a bad picture, so each frame is compared with the best moment within
half a second of its own. The time difference and the picture's quality are reported separately.

Where the prompt leaves something open, the first block makes the choice: of all the clips that are right, the whole
video is held against the one its first block fits best. So a later block that changes its mind is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sdvg_core.pocket.world import Scene

from .world import completions, render_with_mask

REACH = 8
"""How many frames early or late a moment may be and still count as the same."""

BEST = 40.0
"""Decibels above which frames count as equal."""

GLANCES, FINALISTS = 3, 8
"""Frames by which all completions of an open prompt are compared first, and how many are then looked at closely."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What the oracle found in a clip of f pixel frames.

    `quality`: (f,) decibels, higher is better: the PSNR against the best moment, with equal weight for things and
    ground. `lag`: (f,) frames by which the clip is ahead (positive) or behind. `temporal_error`: (f - 1,) how far
    each change from frame to frame is from the true one, root mean square in levels of 255. `seams`: the first
    frames of blocks. `chosen`: the determined scene that the clip was held against.
    """

    quality: Tensor
    lag: Tensor
    temporal_error: Tensor
    seams: tuple[int, ...]
    chosen: Scene

    @property
    def seam_error(self) -> float:
        """How much larger the temporal error is at block borders than elsewhere, in levels; 0 without a border."""
        at_border = torch.zeros(len(self.temporal_error), dtype=torch.bool)
        at_border[[seam - 1 for seam in self.seams]] = True
        if not at_border.any() or at_border.all():
            return 0.0
        return float(self.temporal_error[at_border].mean() - self.temporal_error[~at_border].mean())


def judge(frames: Tensor, scene: Scene, seams: Sequence[int] = ()) -> Verdict:
    """Judge the whole clip of a scene, `f c h w` in [0, 1] from its first frame; `seams`: where blocks start.

    If the scene is open, the frames before the first seam choose; all of them if there is none.
    """
    count = len(frames)
    scene = choice(frames[: min(seams, default=count)], scene)
    truth, errors = _errors_by_lag(frames, scene)
    # Of moments that fit equally well, as when everything stands still, take the nearest.
    nearest = torch.arange(-REACH, REACH + 1).abs().argsort(stable=True)
    lag = nearest[errors[nearest].argmin(dim=0)]
    due = torch.arange(count)
    quality = (-10 * errors[lag, due].clamp(min=1e-12).log10()).clamp(max=BEST)
    shown = due + lag
    true_change = truth[shown[:-1] + 1] - truth[shown[:-1]]
    change_error = (frames.diff(dim=0) - true_change).square().mean(dim=(1, 2, 3)).sqrt() * 255
    return Verdict(quality, lag - REACH, change_error, tuple(seams), scene)


def choice(frames: Tensor, scene: Scene) -> Scene:
    """Return the completion of a scene that a clip's first frames `f c h w` fit best, early or late allowed.

    Of those that fit equally well, the first.
    """
    candidates = completions(scene)
    if len(candidates) > FINALISTS:
        glances = torch.linspace(0, len(frames) - 1, GLANCES).round().long()
        found = [weighted_error(frames[glances], *render_with_mask(one, glances)).sum() for one in candidates]
        order = torch.stack(found).argsort(stable=True)[:FINALISTS]
        candidates = tuple(candidates[number] for number in sorted(order.tolist()))
    if len(candidates) == 1:
        return candidates[0]
    errors = [_errors_by_lag(frames, one)[1].amin(dim=0).mean() for one in candidates]
    return candidates[int(torch.stack(errors).argmin())]


def still_quality(frames: Tensor, scene: Scene, length: int = 105) -> Tensor:
    """Return (f,) decibels of each frame against the best moment of any clip the scene allows, at any time.

    This is all a single frame can show, and what the reward model is trained to predict.
    """
    found = []
    for one in completions(scene):
        truth, mask = render_with_mask(one, torch.arange(length, dtype=torch.float32))
        found.append(torch.stack([weighted_error(frame, truth, mask).min() for frame in frames]))
    errors = torch.stack(found).amin(dim=0)
    return (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST)


def _errors_by_lag(frames: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
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
