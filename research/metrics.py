"""Metrics for finished videos. A metric is anything with a name and a `measure`."""

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

from torch import Tensor

from sdvg_core.errors import BadInput
from sdvg_core.files.video import write_mp4
from sdvg_core.pocket.grammar import parse

from .oracle import judge


class Metric(Protocol):
    """Measures whole videos."""

    @property
    def name(self) -> str:
        """Its name in settings and errors."""
        ...

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return numbers by name for pixel frames `f c h w` in [0, 1]; `seams`: the first frames of blocks."""
        ...


class FrameJudge(Protocol):
    """Says how good each frame is, independent of its block."""

    def frame_quality(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Tensor:
        """Return one number per frame of `f c h w`, `(f,)`, higher is better; `seams`: where blocks start."""
        ...


class Oracle:
    """The pocket world's ground truth: quality in dB, lag in frames, temporal and seam error in levels of 255."""

    name = "oracle"

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

    name = "seams"

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the difference of the two mean changes, root mean square in levels of 255; 0 without a border."""
        change = frames.diff(dim=0).square().mean(dim=(1, 2, 3)).sqrt() * 255
        borders = {seam - 1 for seam in seams}
        at, inside = _split(change.tolist(), borders)
        return {"seam_change": sum(at) / len(at) - sum(inside) / len(inside) if at and inside else 0.0}


def _split(values: Sequence[float], chosen: set[int]) -> tuple[list[float], list[float]]:
    return [v for i, v in enumerate(values) if i in chosen], [v for i, v in enumerate(values) if i not in chosen]


@dataclass(frozen=True, slots=True)
class External:
    """A program that takes an mp4 and the prompt, and prints a number on its last line.

    `command`: the program and its arguments; the arguments `{video}` and `{prompt}` are replaced as a whole,
    without a shell. `timeout`: in seconds.
    """

    command: tuple[str, ...]
    fps: float
    timeout: float = 600.0
    name: str = "external"

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        """Return the number. Raises `BadInput` if the program fails, takes too long, or prints none."""
        with tempfile.TemporaryDirectory() as folder:
            video = Path(folder) / "video.mp4"
            write_mp4(video, frames, self.fps)
            given = {"{video}": str(video), "{prompt}": prompt}
            return {self.name: _number(self._run([given.get(part, part) for part in self.command]))}

    def _run(self, arguments: list[str]) -> str:
        try:
            done = subprocess.run(
                arguments,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(f"took more than {self.timeout:g} s") from error
        except subprocess.CalledProcessError as error:
            raise _failed(f"ended with code {error.returncode} ({_last_line(error.stderr)})") from error
        except (OSError, ValueError) as error:
            raise _failed(f"could not be started ({error})") from error
        return done.stdout


def parse_external(text: str, fps: float, timeout: float) -> External:
    """Read a command such as `score.py {video} {prompt}`. Raises `BadInput` if it is not one or takes no video."""
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"the command {text!r} cannot be read ({error}); check its quotes") from error
    if "{video}" not in command:
        raise BadInput(
            f"the external command needs {{video}} as an argument, but got {text!r}; "
            "write for example 'python score.py {video} {prompt}'"
        )
    if not timeout > 0:
        raise BadInput(f"the external timeout must be above 0 seconds, but is {timeout:g}; give more")
    return External(command, fps, timeout)


def _number(output: str) -> float:
    line = _last_line(output)
    try:
        value = float(line)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _failed(f"printed {line[:60]!r} last")
    return value


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _failed(what: str) -> BadInput:
    return BadInput(
        f"the external command must print a finite number on its last line, but it {what}; "
        "try the command by hand on one video"
    )
