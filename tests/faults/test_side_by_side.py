"""Runs beside one another, in threads of one process or in processes, know nothing of each other."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch
from faulty import REQUEST, make_loaded, make_video, names

from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import BLOCKS_FOLDER, LATENTS, lock_folder, staged_video
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import Gate, Route
from sdvg_core.weights.latents import load_latents
from tests.support.cli_runs import OUTPUTS
from tests.support.reuse_folders import contents

pytestmark = pytest.mark.heavy

REQUESTS = (
    REQUEST,
    replace(REQUEST, seed=7, width=32, drafter_context="own", route=Route(Gate(0.3))),
)


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """Run tasks in a thread each, which begin at the same moment; what one raises is raised here."""
    gate = threading.Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        gate.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return [future.result() for future in [threads.submit(begin, task) for task in tasks]]


def video(folder: Path, request: VideoRequest, policy: str) -> torch.Tensor:
    torch.set_num_threads(1)
    make_video(make_loaded(policy), folder / str(request.seed), request)
    return load_latents(folder / str(request.seed) / LATENTS).latents


@pytest.mark.parametrize("policy", ["recompute", "incremental"])
def test_runs_in_two_threads_equal_runs_alone(tmp_path, policy):
    first_alone, second_alone = (video(tmp_path / "alone", request, policy) for request in REQUESTS)
    for number in range(2):
        folder = tmp_path / str(number)
        first, second = at_once(*(partial(video, folder, request, policy) for request in REQUESTS))
        assert torch.equal(first, first_alone)
        assert torch.equal(second, second_alone)


# --- what holds them apart


def write_set(folder: Path, text: str) -> bool:
    """Write a video, if nobody holds its folder."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder))
        except BadInput:
            return False
        work = stack.enter_context(staged_video(folder, {"seed": text}, replace=True))
        for name in OUTPUTS:
            (work / name / "000001.safetensors" if name == BLOCKS_FOLDER else work / name).write_text(text)
    return True


def test_runs_into_one_folder_never_mix(tmp_path):
    """Catches a lock that is removed while another waits for it, and folders of one that another removes."""
    folder = tmp_path / "new" / "out"
    for _ in range(20):
        assert any(at_once(*(partial(write_set, folder, str(number)) for number in range(4))))
        assert len(set(contents(folder).values())) == 1
        assert names(folder) == OUTPUTS
        assert names(folder.parent) == ["out"]


HOLDER = """
import sys, pathlib
from sdvg_core.files.outputs import lock_folder
with lock_folder(pathlib.Path(sys.argv[1])):
    print("held", flush=True) or input()
"""


def test_folder_held_by_a_process_is_refused(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "out")]
    with Popen(command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parents[2]) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BadInput, match="another run"), lock_folder(tmp_path / "out"):
            pass
        other.kill()
    with lock_folder(tmp_path / "out"):
        pass


def test_one_of_four_runs_gets_the_folder(tmp_path):
    """By a lock of the operating system, which threads contend for as processes do."""

    def is_locked_by(stack: ExitStack) -> bool:
        with suppress(BadInput):
            stack.enter_context(lock_folder(tmp_path / "out"))
            return True
        return False

    for _ in range(20):
        with ExitStack() as stack:
            assert at_once(*[partial(is_locked_by, stack)] * 4).count(True) == 1


def test_removed_lock_is_not_taken_for_the_next(tmp_path, monkeypatch):
    """Catches a lock on a file that is open and has no name any more: the next run locks a new file."""
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock
    first = ExitStack()
    second = ExitStack()
    first.enter_context(lock_folder(tmp_path / "out"))

    def flock_after_a_change(*arguments: Any) -> None:
        """Lock the file that a third run opened, after the first has removed it and the second made another."""
        monkeypatch.undo()
        first.close()
        second.enter_context(lock_folder(tmp_path / "out"))
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_change)
    with second, pytest.raises(BadInput, match="another run"), lock_folder(tmp_path / "out"):
        pass
    assert names(tmp_path) == []


def test_many_runs_share_one_new_folder(tmp_path):
    """Catches the folder that one run made, and removes as its own, while another is about to write into it."""

    def lock_only(folder: Path) -> bool:
        with lock_folder(folder):
            return True

    for number in range(20):
        parent = tmp_path / str(number)
        locked = [partial(lock_only, parent / name) for name in "abc"]
        written = [partial(write_set, parent / name, "x") for name in "de"]
        assert all(at_once(*locked, *written))
        assert names(parent) == ["d", "e"]
