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
from cli_runs import OUTPUTS
from faulty import REQUEST, make_loaded, make_video, names

from sdvg_core.checkpoints.latents import load_latents
from sdvg_core.engine.router import RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import LATENTS, check_writable, lock_folder, staged_outputs
from sdvg_core.request.request import VideoRequest

pytestmark = pytest.mark.heavy

REQUESTS = (
    REQUEST,
    replace(REQUEST, seed=7, width=32, drafter_context="own", router=RouterConfig(tau=0.3)),
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


def write_set(folder: Path, text: str) -> None:
    with staged_outputs(folder) as staging:
        for name in OUTPUTS:
            staging.path(name).write_text(text)


def test_sets_that_are_finished_at_the_same_moment_are_never_mixed(tmp_path):
    """Catches files moved one by one with nobody kept out: a video with the report of another."""
    for _ in range(20):
        together(*(partial(write_set, tmp_path / "new" / "out", str(n)) for n in range(4)))
        texts = {(tmp_path / "new" / "out" / name).read_text() for name in OUTPUTS}
        assert len(texts) == 1
        assert names(tmp_path / "new" / "out") == OUTPUTS


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


def test_a_new_folder_can_be_looked_at_and_made_by_many_at_once(tmp_path):
    """Catches the folder that one run made, and removes as its own, while another is about to write into it."""
    for number in range(20):
        folder = tmp_path / str(number) / "out"
        look, write = partial(check_writable, folder), partial(write_set, folder, "whole")
        together(look, look, look, write, write)
        assert names(folder) == OUTPUTS
