"""What finished videos are measured by: the small world's oracle, the change at seams, an external program.

The oracle says how good a clip is, compared with the clip its prompt determines. A clip that runs a little early or
late is not a bad picture, so each frame is compared with the best moment within half a second of its own. The time
difference and the picture's quality are reported separately.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from sdvg_core.errors import BadInput, first_line
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import Scene

from .presence import at_its_place
from .world import REACH, render_with_mask

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


def levels(change: Tensor) -> Tensor:
    """Return (f,) root mean squares of frames `f c h w`, in levels of 255."""
    return change.square().mean(dim=(1, 2, 3)).sqrt() * 255


def excess_at(seams: Sequence[int], change: Tensor) -> float:
    """Return how much larger a change between frames is before the first frames of blocks; 0 without a border."""
    at_border = torch.zeros(len(change), dtype=torch.bool)
    at_border[[seam - 1 for seam in seams]] = True
    if not at_border.any() or at_border.all():
        return 0.0
    return float(change[at_border].mean() - change[~at_border].mean())


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


# --- metrics: anything with a `measure`


class Metric(Protocol):
    """Measures whole videos."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return numbers by name for pixel frames `f c h w` in [0, 1]; `seams`: the first frames of blocks."""
        ...


class Oracle:
    """The pocket world's ground truth: quality in dB, lag in frames, and whether the mover is at its place."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return means over the frames, and some of the last or the worst block.

        NaN: the share of frames in which the mover is due, if there is none.
        """
        scene = parse(prompt)
        verdict = judge(frames, scene)
        placed = at_its_place(frames, scene)
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


class SeamChange:
    """How much more a video changes from one frame to the next at block borders than inside blocks."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the difference of the two mean changes, root mean square in levels of 255; 0 without a border."""
        return {"seam_change": excess_at(seams, levels(frames.diff(dim=0)))}


@dataclass(frozen=True, slots=True)
class External:
    """A program that takes an mp4 and the prompt, and prints a number on its last line.

    `command`: the program and its arguments; the arguments `{video}` and `{prompt}` are replaced as a whole,
    without a shell. `timeout`: in seconds.
    """

    command: tuple[str, ...]
    timeout: float = 600.0

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the number. Raises `BadInput` if the program fails, takes too long, or prints none."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                video = Path(folder) / "video.mp4"
                write_mp4(video, frames, 16.0)
                given = {"{video}": str(video), "{prompt}": prompt}
                command = [given.get(part, part) for part in self.command]
                run = subprocess.run(command, stdout=subprocess.PIPE, timeout=self.timeout)
            if run.returncode:
                raise ValueError(f"it ended with exit status {run.returncode}")
            value = float(run.stdout.decode(errors="replace").strip().rpartition("\n")[2])
            if not math.isfinite(value):
                raise ValueError(f"it printed {value}")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            late = isinstance(error, subprocess.TimeoutExpired)  # which begins with the whole command
            fault = f"it took over {self.timeout:g} s" if late else first_line(error)
            raise BadInput(f"the external command printed no number last ({fault}); try it by hand") from error
        return {"external": value}


def parse_external(text: str) -> External:
    """Read a command such as `score.py {video} {prompt}`. Raises `BadInput` if it is not one or takes no video."""
    try:
        command = tuple(shlex.split(text))
    except ValueError:
        command = ()
    if "{video}" not in command:
        raise BadInput("--external lacks {video}, or has an open quote; write 'score.py {video} {prompt}'")
    return External(command)
