"""A study on a Ray cluster gives the rows of one without, also if a worker dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from study_tiny import SOME, lasting, open_tiny_bench, rows_of, unit
from tiny import make_engine
from torch import Tensor

from research.equipment import Equipment
from research.metrics import SeamChange
from research.worker import StudyWorker
from sdvg_core.errors import BadInput
from sdvg_core.workers.news import Failed, Finished, Heard
from sdvg_core.workers.on_ray import work_on_ray

PROMPTS = [f"a red ball {i}" for i in range(6)]


class DiesOnce:
    """Kills its process in the middle of a unit, unless that has happened already; without a grave, always."""

    name = "mortal"

    def __init__(self, grave: Path | None) -> None:
        self._grave, self._measured = grave, 0

    def measure(self, frames: Tensor, prompt: str, seams: Sequence[int]) -> Mapping[str, float]:
        self._measured += 1
        if self._grave is None or (self._measured == len(SOME) + 2 and not self._grave.exists()):
            if self._grave:
                self._grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {}


def open_mortal_bench(grave: Path | None) -> Equipment:
    from study_tiny import BLOCKS, Redness

    return Equipment(
        engine=make_engine(), blocks=BLOCKS, width=8, height=8, metrics=(SeamChange(), Redness(), DiesOnce(grave))
    )


@pytest.fixture
def ray(monkeypatch):
    pytest.importorskip("ray", minversion="2.40", reason="ray is an optional extra")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_a_unit_that_kills_every_worker_fails_after_the_last_try(ray):
    # Warming up makes no video to measure, so each worker dies over its first row.
    opener = partial(StudyWorker, partial(open_mortal_bench, None))
    units = [unit(SOME, PROMPTS[0])]
    news = list(work_on_ray(units, opener, address="local", gpus=0, most=1, tries=2))
    assert [(type(n), n.again) for n in news] == [(Failed, True), (Failed, False)]
    assert all("a worker died; see Ray's logs" in n.reason for n in news)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_two_ray_workers_of_which_one_is_killed_give_the_rows_of_none(tmp_path, ray):
    units = [unit(SOME, prompt) for prompt in PROMPTS]
    grave = tmp_path / "grave"
    opener = partial(StudyWorker, partial(open_mortal_bench, grave))
    news = list(work_on_ray(units, opener, address="local", gpus=0, most=2, tries=2))
    assert grave.exists(), "no worker was killed"
    assert [n.again for n in news if isinstance(n, Failed)] == [True]
    assert sorted(n.task.prompt for n in news if isinstance(n, Finished)) == PROMPTS
    rows = [n.said.record for n in news if isinstance(n, Heard)]
    found = {(row["prompt"], row["configuration"]): lasting(row) for row in rows}
    bench = open_tiny_bench()
    expected = [lasting(row) for one in units for row in rows_of(bench, one)]
    assert found == {(row["prompt"], row["configuration"]): row for row in expected}


def test_without_ray_the_command_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"pip install 'sdvg\[ray\]'"):
        list(work_on_ray([unit(SOME)], partial(StudyWorker, open_tiny_bench), address="local", gpus=0))
