"""Whole videos of tiny random models on a GPU: the CPU's latents, the same bits every time, nothing kept."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu_videos import BLOCKS, digest, latents, make_blocks, models_on

from lab.benchmarks.variants import OURS, Case, parse_route, set_up
from sdvg_core.devices.device import device_clock
from sdvg_core.engine.run import plan_run
from tests.support.random_models import TINY, Models

pytestmark = pytest.mark.gpu
needs_card = pytest.mark.needs_card
ROOT = Path(__file__).resolve().parents[2]
AGAIN = """
import torch
from tests.gpu.gpu_videos import digest, make_blocks, models_on
torch.backends.cudnn.allow_tf32 = False
models = models_on(torch.device("{device}"))
print(*(digest(make_blocks(models)) for _ in range(2)))
"""


@pytest.fixture(scope="module")
def models(gpu) -> Models:
    return models_on(gpu)


def test_latents_equal_the_cpus(gpu, models):
    expected = latents(make_blocks(models_on(torch.device("cpu"))))
    error = latents(make_blocks(models)) - expected
    assert float(error.norm() / expected.norm()) < 5e-3


def test_same_request_makes_the_same_bits(gpu, models):
    """Catches: a first run of a process that differs, for cuDNN chose another kernel."""
    digests = [digest(make_blocks(models)) for _ in range(3)]
    code = AGAIN.format(device=gpu)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    assert {*digests, *process.stdout.split()} == {digests[0]}, (digests, process.stdout)


def held() -> int:
    """Return the bytes that are allocated on the GPU."""
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.fixture
def all_of_the_card() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@needs_card
def test_memory_is_freed_after_runs(models):
    make_blocks(models)
    before = held()
    make_blocks(models)
    assert held() == before


@needs_card
def test_memory_is_freed_after_an_interrupt(models):
    make_blocks(models)
    before = held()
    setup = set_up([OURS], models, TINY)[OURS.name]
    case = Case(route=parse_route("r=1", BLOCKS), variant=OURS)
    run = plan_run(
        case.engine(setup, device_clock(models.device)),
        case.route.rule,
        lambda _: models.condition,
        blocks=BLOCKS,
        seed=3,
        width=TINY.width,
        height=TINY.height,
    ).blocks()
    next(run)
    run.close()
    del run, case, setup
    assert held() == before


@needs_card
def test_third_of_the_card_makes_the_same_video(models, all_of_the_card):
    whole = digest(make_blocks(models))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1 / 3)
    assert digest(make_blocks(models)) == whole
