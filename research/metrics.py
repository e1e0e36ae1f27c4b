"""Metrics for finished videos. A metric is anything with a `measure`."""

from __future__ import annotations

import math
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Protocol

from torch import Tensor

from sdvg_core.errors import BadInput, first_line
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.grammar import parse

from .oracle import judge

FPS = 16.0
TIMEOUT = 600.0
"""Seconds for an external command and one video."""


class Metric(Protocol):
    """Measures whole videos."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return numbers by name for pixel frames `f c h w` in [0, 1]; `seams`: the first frames of blocks."""
        ...


class Oracle:
    """The pocket world's ground truth: quality in dB, lag in frames, temporal and seam error in levels of 255."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return means over the frames, and the quality of the worst block."""
        verdict = judge(frames, parse(prompt), seams)
        blocks = [verdict.quality[first:last].mean() for first, last in pairwise((0, *seams, len(frames)))]
        return {
            "quality": float(verdict.quality.mean()),
            "worst_block_quality": float(min(blocks)),
            "lag": float(verdict.lag.abs().float().mean()),
            "temporal_error": float(verdict.temporal_error.mean()),
            "seam_error": verdict.seam_error,
        }

    def frame_quality(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Tensor:
        """Return each frame's quality in dB."""
        return judge(frames, parse(prompt), seams).quality


class SeamChange:
    """How much more a video changes from one frame to the next at block borders than inside blocks."""

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the difference of the two mean changes, root mean square in levels of 255; 0 without a border."""
        change = (frames.diff(dim=0).square().mean(dim=(1, 2, 3)).sqrt() * 255).tolist()
        borders = {seam - 1 for seam in seams}
        at = [value for place, value in enumerate(change) if place in borders]
        inside = [value for place, value in enumerate(change) if place not in borders]
        return {"seam_change": fmean(at) - fmean(inside) if at and inside else 0.0}


@dataclass(frozen=True, slots=True)
class External:
    """A program that takes an mp4 and the prompt, and prints a number on its last line.

    `command`: the program and its arguments; the arguments `{video}` and `{prompt}` are replaced as a whole,
    without a shell. `timeout`: in seconds.
    """

    command: tuple[str, ...]
    timeout: float = TIMEOUT

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the number. Raises `BadInput` if the program fails, takes too long, or prints none."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                video = Path(folder) / "video.mp4"
                write_mp4(video, frames, FPS)
                given = {"{video}": str(video), "{prompt}": prompt}
                command = [given.get(part, part) for part in self.command]
                run = subprocess.run(command, stdout=subprocess.PIPE, timeout=self.timeout)
            if run.returncode:
                raise ValueError(f"it ended with exit status {run.returncode}")
            value = float(run.stdout.decode(errors="replace").strip().rpartition("\n")[2])
            if not math.isfinite(value):
                raise ValueError(f"it printed {value}")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadInput(
                f"the external command printed no finite number last ({first_line(error)}); try it by hand"
            ) from error
        return {"external": value}


def parse_external(text: str) -> External:
    """Read a command such as `score.py {video} {prompt}`. Raises `BadInput` if it is not one or takes no video."""
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"the command {text!r} cannot be read ({error}); check its quotes") from error
    if "{video}" not in command:
        raise BadInput(
            f"the external command has no argument {{video}}: {text!r}; write 'score.py {{video}} {{prompt}}'"
        )
    return External(command)
