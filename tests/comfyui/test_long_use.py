"""Many runs in one process, no two alike: nothing grows."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from host_run import Parts, held, load_parts, make_job, video_of
from sdvg_pack.nodes.host.job import Job
from sdvg_pack.nodes.host.live import RUNS
from sdvg_pack.nodes.sockets import PromptEntry, RouterValue
from sdvg_pack.sdvg_core.engine.router import RouterConfig
from sdvg_pack.sdvg_core.scorers import preprocess

pytestmark = [pytest.mark.comfyui, pytest.mark.usefixtures("newest_runs")]

SETTLED = 3  # runs, after which nothing may grow
MODELS_LAST = 5  # runs, after which others are loaded
MEGABYTE = 2**20
SIZES = ((32, 32), (48, 32), (32, 64), (64, 48))
ROUTERS: tuple[dict[str, Any], ...] = (
    {"policy": "reward", "tau": 0.0},
    {"policy": "first"},
    {"policy": "first", "forced_blocks": 0},
    {"policy": "always-target"},
    {"policy": "reward", "tau": -0.7, "handover": 2},
)


def make_nth_job(number: int, parts: Parts) -> Job:
    """Return a job of another size, prompt, seed, router, beginning and context than those around it."""
    job = make_job(
        parts,
        script="raa",
        size=SIZES[number % len(SIZES)],
        prompt=number,
        seed=number,
        router=RouterValue(RouterConfig(**ROUTERS[number % len(ROUTERS)]), parts.scorer),
        drafter_context=("committed", "own")[number % 2],
    )
    if number % 3 == 1:
        later = PromptEntry(1, [[torch.full((1, 512, 32), 0.1), {}]], f"something else {number}")
        return replace(job, prompts=(*job.prompts, later))
    if number % 3 == 2:
        return replace(job, start_image=torch.full((1, 40, 40, 3), 0.5))
    return job


@pytest.mark.parametrize("runs", [7, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_what_a_process_holds_on_to_is_the_same_after_every_run(runs: int, tmp_path: Path) -> None:
    """Catches: a cache filled by size or prompt, a thread, a file or a model that a run leaves behind."""
    parts, resident = load_parts(tmp_path), []
    settled = None
    for number in range(runs):
        if number % MODELS_LAST == MODELS_LAST - 1:
            del parts
            parts = load_parts(tmp_path, seed=number)
        video_of(make_nth_job(number, parts))
        for run in RUNS.now():
            run.beginnings.clear()  # of the newest runs (test_kept.py)
        preprocess._taps_on.cache_clear()  # of four resizes at most, which are of the newest sizes
        if number == SETTLED:
            settled = held()
        if settled is not None:
            now = held()
            # New models are loaded only as they are asked for.
            assert now.loaded_models <= settled.loaded_models
            assert replace(now, loaded_models=settled.loaded_models) == settled, number
            resident.append(resident_bytes())
    assert resident[-1] - resident[0] < 32 * MEGABYTE


def test_a_run_frees_what_it_held_at_once_and_not_when_python_next_looks_for_it(tmp_path: Path) -> None:
    """Catches objects that hold each other, and with them gigabytes of keys and values on a GPU."""
    parts = load_parts(tmp_path)
    video_of(make_nth_job(1, parts))
    before, job = held(), make_nth_job(1, parts)
    gc.disable()
    try:
        made = video_of(job)
        del made, job
        assert held(collect=False).tensor_bytes == before.tensor_bytes
    finally:
        gc.enable()


def resident_bytes() -> int:
    """Return the memory that the process takes; 0 where that cannot be seen."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    [line] = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024
