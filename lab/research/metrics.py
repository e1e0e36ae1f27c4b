"""What finished videos are measured by: the small world's oracle, the change at seams, an external program."""

from __future__ import annotations

import math
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor

from sdvg_core.errors import BadInput, first_line
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.figures import figures_of
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.oracle import BEST, REACH, weighted_error
from sdvg_core.pocket.renderer import render_with_mask
from sdvg_core.pocket.world import PACES, RADII, SIZE, Scene

LATE_BLOCKS = 8
"""Of a long clip."""


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


# --- metrics: anything with a `measure`


class Metric(Protocol):
    """Measures whole videos."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return numbers by name for pixel frames `f c h w` in [0, 1]; `seams`: the first frames of blocks."""
        ...


class Oracle:
    """The pocket world's ground truth: quality in dB, lag in frames, and whether the mover is at its place."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return what the oracle says of them; NaN: the shares of frames in which the mover is due, without any."""
        return figures_of(frames, parse(prompt), seams)


class SeamChange:
    """How much more a video changes from one frame to the next at block borders than inside blocks."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the difference of the two mean changes, root mean square in levels of 255; 0 without a border."""
        return {"seam_change": excess_at(seams, levels(frames.diff(dim=0)))}


class BestMoment:
    """How clear the last blocks are, whenever they should show what they show: a long clip runs early or late."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the mean decibels of the last frames of the last LATE_BLOCKS blocks, at the best of a way."""
        ends = torch.tensor([*(seam - 1 for seam in seams), len(frames) - 1])[-LATE_BLOCKS:]
        _, clearness = qualities(frames[ends], ends, parse(prompt))
        return {"late_clearness": fmean(clearness)}


def qualities(frames: Tensor, shown_at: Tensor, scene: Scene) -> tuple[list[float], ...]:
    """Return decibels of frames `f c h w` at their moments, give or take REACH, and at the best of a way."""
    way = int(2 * (SIZE - 2 * RADII[scene.mover.size]) / PACES[scene.mover.pace]) + 1
    reach = torch.arange(-REACH, REACH + 1)
    whole = render_with_mask(scene, torch.arange(way))
    found: tuple[list[float], ...] = [], []
    for frame, at in zip(frames, shown_at, strict=True):
        due = render_with_mask(scene, (at + reach).clamp(min=0))
        for moments, into in zip((due, whole), found, strict=True):
            into.append(min(float(-10 * weighted_error(frame[None], *moments).min().log10()), BEST))
    return found


class ColourDrift:
    """How far the colours of the last blocks are from those of the first."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return how far the mean colour of the last LATE_BLOCKS blocks is from the first's, in levels of 255."""
        means = [block.mean(dim=(0, 2, 3)) for block in frames.tensor_split([*seams])]
        drifts = [(mean - means[0]).square().mean().sqrt() for mean in means[-LATE_BLOCKS:]]
        return {"late_drift": 255 * float(torch.stack(drifts).mean())}


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
