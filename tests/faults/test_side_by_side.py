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


def together(*tasks: Callable[[], Any]) -> list[Any]:
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
def test_two_runs_in_two_threads_make_what_each_makes_alone(tmp_path, policy):
    alone = [video(tmp_path / "alone", request, policy) for request in REQUESTS]
    for round_ in range(2):
        folder = tmp_path / str(round_)
        beside = together(*(partial(video, folder, request, policy) for request in REQUESTS))
        assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


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


def test_runs_that_come_to_one_folder_at_once_never_mix_and_never_disturb_one_another(tmp_path):
    """Catches a lock that is removed while another waits for it, and folders of one that another removes."""
    folder = tmp_path / "new" / "out"
    for _ in range(20):
        assert any(together(*(partial(write_set, folder, str(n)) for n in range(4))))
        texts = set(contents(folder).values())
        assert len(texts) == 1
        assert names(folder) == OUTPUTS
        assert names(folder.parent) == ["out"]


HOLDER = """
import sys, pathlib
from sdvg_core.files.outputs import lock_folder
with lock_folder(pathlib.Path(sys.argv[1])):
    print("held", flush=True) or input()
"""


def test_what_a_process_holds_is_refused_to_another_until_it_dies(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "out")]
    with Popen(command, stdin=PIPE, stdout=PIPE, cwd=Path(__file__).parents[2]) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BadInput, match="another run is writing into"), lock_folder(tmp_path / "out"):
            pass
        other.kill()
    with lock_folder(tmp_path / "out"):
        pass


def test_of_runs_that_take_one_folder_at_once_one_has_it(tmp_path):
    """By a lock of the operating system, which threads contend for as processes do."""

    def has_it(stack: ExitStack) -> bool:
        with suppress(BadInput):
            stack.enter_context(lock_folder(tmp_path / "out"))
            return True
        return False

    for _ in range(20):
        with ExitStack() as stack:
            assert sorted(together(*(partial(has_it, stack) for _ in range(4)))) == [False, False, False, True]


def test_a_lock_whose_owner_removed_it_just_now_is_not_taken_for_the_one_of_the_next(tmp_path, monkeypatch):
    """Catches a lock on a file that is open and has no name any more: the next run locks a new file."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(lock_folder(tmp_path / "out"))
    fcntl = pytest.importorskip("fcntl")
    honest = fcntl.flock

    def flock(*arguments: Any) -> None:
        monkeypatch.undo()
        first.close()
        second.enter_context(lock_folder(tmp_path / "out"))
        honest(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock)
    with second, pytest.raises(BadInput, match="another run is writing into"), lock_folder(tmp_path / "out"):
        pass
    assert names(tmp_path) == []


def test_folders_in_one_new_folder_can_be_tried_and_made_by_many_at_once(tmp_path):
    """Catches the folder that one run made, and removes as its own, while another is about to write into it."""

    def look(folder: Path) -> bool:
        with lock_folder(folder):
            return True

    for number in range(20):
        folders = [tmp_path / str(number) / name for name in "abcde"]
        assert all(
            together(*(partial(look, f) for f in folders[:3]), *(partial(write_set, f, "x") for f in folders[3:]))
        )
        assert names(tmp_path / str(number)) == ["d", "e"]
