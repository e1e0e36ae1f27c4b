"""A run that fails at any call, is killed or has no disk leaves nothing half and loses no finished block."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from faulty import Trap, footprint, make_loaded, make_video, quick, result

from sdvg_core.causal_wan import generator
from sdvg_core.cli import main
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import unfinished_blocks
from sdvg_core.loading.load import Models
from tests.support.cli_runs import OUTPUTS, names
from tests.support.forked import fork
from tests.support.reuse_folders import five, made, same


class HostInterrupt(BaseException):
    """As ComfyUI stops a node since it made its interrupt a `BaseException`."""


ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: RuntimeError("a fault"),
    lambda: torch.OutOfMemoryError("out of memory"),
    KeyboardInterrupt,
    HostInterrupt,
)


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


class FaultyRuns:
    """One set of models in one process, a fault after another, as in somebody's ComfyUI."""

    def __init__(self, policy: str, folder: Path) -> None:
        self.trap = Trap()
        self.folder = folder
        self.loaded: Models = make_loaded(policy, before_pass=lambda kind: self.trap(f"progress, {kind}"))
        self.fresh = self.run(folder / "fresh", Trap())
        self.stages = self.trap.stages
        self.before = footprint()

    def run(self, folder: Path, trap: Trap) -> tuple[object, ...]:
        """Make the video, with calls that go by this trap."""
        self.trap = trap
        with trap.set():
            report = make_video(self.loaded, folder, on_block=lambda record: trap("progress, block"))
        return result(folder, report)

    def fail(self, folder: Path, number: int, error: BaseException) -> None:
        """Make the video, and see that it ends with this error at this call."""
        kind = type(error)
        try:
            self.run(folder, Trap(number, error))
        except kind:
            return
        raise AssertionError(f"call {number} was to raise {kind.__name__}")

    def check_resumed(self, number: int, error: BaseException) -> None:
        """Fail at one call, see what is left, and go on from there."""
        stage = self.stages[number - 1]
        call = f"call {number} of {len(self.stages)}, {stage}"
        folder = self.folder / f"{number}"
        self.fail(folder, number, error)
        is_whole = stage == "renamed"
        assert names(folder) == (OUTPUTS if is_whole else []), call
        kept = len(unfinished_blocks(folder))
        written = 0 if is_whole else self.stages[: number - 1].count("wrote block")
        # Once written, a block is moved to the others, and that may be the call that fails.
        assert kept in (written, written - 1), call
        resumed = Trap()
        assert self.run(folder, resumed) == self.fresh, call
        assert resumed.stages.count("wrote block") == 9 - kept, call
        assert names(folder) == OUTPUTS, call

    def check_footprint(self, number: int, make_error: Callable[[], BaseException]) -> None:
        """Fail at one call; memory, files and threads are as before, and the same video can be made again.

        The error is not kept: its traceback holds all that the run held.
        """
        stage = self.stages[number - 1]
        self.fail(self.folder / f"held{number}", number, make_error())
        after = footprint()
        if after["threads"] > self.before["threads"]:
            time.sleep(1)  # Linux lists a thread that was joined for a moment longer (4 of 20,000)
            after = footprint()
        assert all(after[kind] <= self.before[kind] for kind in after), (stage, self.before, after)
        assert self.run(self.folder / "next", Trap()) == self.fresh, stage


@pytest.mark.heavy
def test_fault_at_every_seventeenth_call_does_no_harm(tmp_path):
    """The four kinds of fault in turn; the exhaustive test raises every kind at every call."""
    runs = FaultyRuns("recompute", tmp_path)
    kinds = {stage.split(",")[0] for stage in runs.stages}
    assert kinds >= {"model", "decode", "encode", "score", "progress"}
    assert kinds >= {"write video", "write block", "move", "rename"}
    for number, make_error in zip(range(1, len(runs.stages) + 1, 17), cycle(ERRORS), strict=False):
        runs.check_resumed(number, make_error())
    for number, make_error in zip(range(2, len(runs.stages) + 1, 59), cycle(ERRORS), strict=False):
        runs.check_footprint(number, make_error)


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", ["recompute", "incremental"])
@pytest.mark.parametrize("kind", range(4), ids=["exception", "memory", "ctrl-c", "host interrupt"])
def test_any_fault_at_any_call_does_no_harm(tmp_path, policy, kind):
    runs = FaultyRuns(policy, tmp_path)
    assert len(runs.stages) > 150
    for number in range(1, len(runs.stages) + 1):
        runs.check_resumed(number, ERRORS[kind]())
        runs.check_footprint(number, ERRORS[kind])


WRITES = ("write video", "write block", "write latents", "write report", "move", "rename")


@pytest.mark.heavy
def test_full_disk_at_any_write_does_no_harm(tmp_path):
    """Nor a full quota: the next run, when there is room, goes on from the last block."""
    loaded = make_loaded()
    whole = Trap()
    with whole.set():
        fresh = result(tmp_path / "whole", make_video(loaded, tmp_path / "whole"))
    writes = [number for number, stage in enumerate(whole.stages, 1) if stage in WRITES]
    for number, code in zip([*writes[:6], *writes[-10:]], (errno.ENOSPC, errno.EDQUOT) * 8, strict=True):
        folder = tmp_path / str(number)
        full = Trap(number, OSError(code, os.strerror(code)))
        with full.set(), pytest.raises(BadInput, match="is full"):
            make_video(loaded, folder)
        assert not (folder / "video.mp4").exists()
        assert result(folder, make_video(loaded, folder)) == fresh


@pytest.mark.heavy
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_run_resumes_to_the_same_video(files, tmp_path):
    """Killed in a block. A kill at any change to the disk is in `files/test_outputs.py`."""
    words = [*five(files), "--prompt", "a red ball"]
    folder = tmp_path / "out"
    whole = made(tmp_path / "whole", words)
    run_pass = generator.denoise_pass
    passes = count(1)

    def denoise_pass(*inputs: Any, **options: Any) -> Any:
        if next(passes) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_pass(*inputs, **options)

    with patch.object(generator, "denoise_pass", denoise_pass):
        process = fork(lambda: main([*words, "--output", str(folder)]), os.devnull, os.devnull)
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    assert not folder.exists()
    assert len(unfinished_blocks(folder)) == 3
    resumed = made(folder, words)
    same(resumed, whole)
    assert any("Blocks 1 to 3" in note for note in resumed[2]["notes"])
    assert names(folder) == OUTPUTS
    assert names(tmp_path) == ["out", "whole"]
