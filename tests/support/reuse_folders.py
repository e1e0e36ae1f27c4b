"""Runs of `generate` into folders, stopped or not; what was made there, and what of it was made earlier."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

from sdvg_core.cli import main
from sdvg_core.files.video import Mp4Writer
from sdvg_core.report.progress import RouteBar
from sdvg_core.videos import rendering
from sdvg_core.videos.blocks import block_files, read_block
from sdvg_core.weights.model_files import ModelFiles
from tests.support.cli_runs import options, override, report

SMALL = ["--size", "16x16", "--schedule", "1000", "--blocks", "3", "--tau", "0.1", "--seed", "2"]
PROMPT = ["--prompt", "a red ball"]
ROUTE = ["target", "target", "drafter"]


class Run(NamedTuple):
    """What a run left: the bytes of the latents' file, a digest of all frames, and the report."""

    latents: bytes
    frames: str
    report: dict[str, Any]


class FrameLog(Mp4Writer):
    """Writes the video, and takes a digest of its frames, however they are cut into calls."""

    newest = ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._digest = hashlib.sha256()

    def add(self, frames: Tensor) -> None:
        super().add(frames)
        self._digest.update(frames.contiguous().numpy().tobytes())
        FrameLog.newest = self._digest.hexdigest()


def made(folder: Path, arguments: list[str], code: int = 0) -> Run:
    """Run `generate` into a folder, and return what it left."""
    with patch.object(rendering, "Mp4Writer", FrameLog):
        assert main(override(arguments, "--output", str(folder))) == code
    return Run((folder / "latents.safetensors").read_bytes(), FrameLog.newest, report(folder))


def decisions(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = ("index", "author", "reason", "score", "threshold", "frame_scores", "pixel_frames", "prompt")
    return [tuple(str(block[key]) for key in keys) for block in report["blocks"]]


def same(run: Run, other: Run) -> None:
    assert run.latents == other.latents, "the latents, with their metadata"
    assert run.frames == other.frames
    assert decisions(run.report) == decisions(other.report)


def reused(run: Run) -> int:
    return sum(block["reused"] for block in run.report["blocks"])


@contextlib.contextmanager
def counted_passes() -> Iterator[list[str]]:
    """Hear of every forward pass."""
    passes: list[str] = []
    honest = RouteBar.step

    def step(self: RouteBar, kind: str) -> None:
        passes.append(kind)
        honest(self, kind)

    with patch.object(RouteBar, "step", step):
        yield passes


@contextlib.contextmanager
def after_block(number: int, do: Callable[[], None]) -> Iterator[None]:
    """Do something when so many blocks have been made."""
    honest = RouteBar.block
    shown = 0

    def block(self: RouteBar, record: Any) -> None:
        nonlocal shown
        honest(self, record)
        shown += not record.reused
        if shown == number:
            do()

    with patch.object(RouteBar, "block", block):
        yield


def five(files: ModelFiles) -> list[str]:
    """Return what asks for five blocks of a set of models, but for the prompt."""
    return override([*options(files), *SMALL], "--blocks", "5")


def stopped_after(number: int, error: BaseException | None = None) -> contextlib.AbstractContextManager[None]:
    """Stop the run, by Ctrl-C unless told otherwise, when so many blocks have been made."""

    def fail() -> None:
        raise error or KeyboardInterrupt

    return after_block(number, fail)


def killed() -> None:
    raise KeyboardInterrupt


def ctrl_c() -> None:
    assert threading.current_thread() is threading.main_thread()
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    ctrl_c()
    ctrl_c()


def stopped(folder: Path, arguments: list[str], number: int, how: Callable[[], None] = killed) -> None:
    with after_block(number, how):
        assert main(override(arguments, "--output", str(folder))) == 130


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, or the one that it is, but for the empty lock that most versions of filelock leave."""
    files = [path for path in (folder, *sorted(folder.rglob("*"))) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def results(folder: Path) -> dict[str, tuple[list[float], ...]]:
    """What the blocks of a video were made from, by key."""
    read = [read_block(path)[1] for path in block_files(folder)]
    return {key: tuple(t.tolist() for t in result) for of in read for key, result in of.items()}
