"""A run that fails at any call, is killed or has no disk leaves nothing half and loses no finished block."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
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
from tests.support.reuse_folders import decisions, five, made


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


class World:
    """One set of models in one process, a fault after another, as in somebody's ComfyUI."""

    def __init__(self, policy: str, folder: Path) -> None:
        self.heard = Trap()
        self.folder = folder
        self.loaded: Models = make_loaded(policy, before_pass=lambda kind: self.heard(f"progress, {kind}"))
        self.fresh = self.run(folder / "fresh", Trap())
        self.stages = self.heard.stages
        self.before = footprint()

    def run(self, folder: Path, trap: Trap) -> tuple[object, ...]:
        self.heard = trap
        with trap.set():
            report = make_video(self.loaded, folder, on_block=lambda record: trap("progress, block"))
        return result(folder, report)

    def fails(self, folder: Path, number: int, error: BaseException) -> None:
        kind = type(error)
        try:
            self.run(folder, Trap(number, error))
        except kind:
            return
        raise AssertionError(f"call {number} was to raise {kind.__name__}")

    def check(self, number: int, error: BaseException) -> None:
        """Fail at one call, see what is left, and go on from there."""
        told = f"call {number} of {len(self.stages)}, {self.stages[number - 1]}"
        folder = self.folder / f"{number}"
        self.fails(folder, number, error)
        renamed = self.stages[number - 1] == "renamed"  # then it is whole
        assert names(folder) == (OUTPUTS if renamed else []), told
        kept = unfinished_blocks(folder)
        written = 0 if renamed else self.stages[: number - 1].count("wrote block")
        # Once written, a block is moved to the others, and that may be the call that fails.
        assert len(kept) in (written, written - 1), told
        again = Trap()
        assert self.run(folder, again) == self.fresh, told
        assert again.stages.count("wrote block") == 9 - len(kept), told
        assert names(folder) == OUTPUTS, told

    def check_what_is_held(self, number: int, make_error: Callable[[], BaseException]) -> None:
        """Fail at one call; memory, files and threads are as before, and the same video can be made again.

        The error is not kept: its traceback holds all that the run held.
        """
        self.fails(self.folder / f"held{number}", number, make_error())
        if (after := footprint())["threads"] > self.before["threads"]:
            time.sleep(1)  # Linux lists a thread that was joined for a moment longer (4 of 20,000)
            after = footprint()
        told = (self.stages[number - 1], self.before, after)
        assert all(after[what] <= self.before[what] for what in after), told
        assert self.run(self.folder / "next", Trap()) == self.fresh, self.stages[number - 1]


@pytest.mark.heavy
def test_a_fault_at_every_seventeenth_call_of_a_nine_block_run_does_no_harm(tmp_path):
    """The four kinds of fault in turn; the exhaustive test raises every kind at every call."""
    world = World("recompute", tmp_path)
    kinds = {stage.split(",")[0] for stage in world.stages}
    assert kinds >= {"model", "decode", "encode", "score", "progress"}
    assert kinds >= {"write video", "write block", "move", "rename"}
    for turn, number in enumerate(range(1, len(world.stages) + 1, 17)):
        world.check(number, ERRORS[turn % 4]())
    for turn, number in enumerate(range(2, len(world.stages) + 1, 59)):
        world.check_what_is_held(number, ERRORS[turn % 4])


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", ["recompute", "incremental"])
@pytest.mark.parametrize("kind", range(4), ids=["exception", "memory", "ctrl-c", "host interrupt"])
def test_every_kind_of_fault_at_every_call_does_no_harm(tmp_path, policy, kind):
    world = World(policy, tmp_path)
    assert len(world.stages) > 150
    for number in range(1, len(world.stages) + 1):
        world.check(number, ERRORS[kind]())
        world.check_what_is_held(number, ERRORS[kind])


WRITES = ("write video", "write block", "write latents", "write report", "move", "rename")


@pytest.mark.heavy
def test_a_disk_or_quota_that_fills_up_at_any_write_is_one_sentence_and_nothing_half(tmp_path):
    """And the next run, when there is room, goes on from the last block."""
    with quick():
        loaded, whole = make_loaded(), Trap()
        with whole.set():
            fresh = result(tmp_path / "whole", make_video(loaded, tmp_path / "whole"))
        writes = [n for n, stage in enumerate(whole.stages, 1) if stage in WRITES]
        for number, code in zip([*writes[:6], *writes[-10:]], (errno.ENOSPC, errno.EDQUOT) * 8, strict=True):
            folder = tmp_path / str(number)
            full = Trap(number, OSError(code, os.strerror(code)))
            with full.set(), pytest.raises(BadInput, match="is full; free some space"):
                make_video(loaded, folder)
            assert not (folder / "video.mp4").exists()
            assert result(folder, make_video(loaded, folder)) == fresh


@pytest.mark.heavy
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_run_that_was_killed_in_a_block_goes_on_to_the_same_video(files, tmp_path):
    """A kill at any change to the disk is in `files/test_outputs.py`."""
    arguments, folder = [*five(files), "--prompt", "a red ball"], tmp_path / "out"
    whole = made(tmp_path / "whole", arguments)
    honest, passes = generator.denoise_pass, []

    def denoise_pass(*given: Any, **more: Any) -> Any:
        passes.append(given)
        if len(passes) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(*given, **more)

    with patch.object(generator, "denoise_pass", denoise_pass):
        process = fork(lambda: main([*arguments, "--output", str(folder)]), os.devnull, os.devnull)
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    assert not folder.exists()
    assert len(unfinished_blocks(folder)) == 3
    rest = made(folder, [*arguments, "--resume"])
    assert rest[:2] == whole[:2]
    assert decisions(rest[2]) == decisions(whole[2])
    assert [note for note in rest[2]["notes"] if "Blocks 1 to 3" in note]
    assert names(folder) == OUTPUTS
    assert names(tmp_path) == ["out", "whole"]
