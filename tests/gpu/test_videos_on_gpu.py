"""Whole videos of tiny random models on a GPU: the CPU's latents, the same bits every time, nothing kept."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu_videos import BLOCKS, digest, latents, made, models_on

from lab.benchmarks.variants import OURS, Case, parse_route, set_up
from sdvg_core.devices.device import device_clock
from sdvg_core.engine.run import plan_run
from tests.support.random_models import TINY, Models

pytestmark = pytest.mark.gpu
needs_card = pytest.mark.needs_card
ROOT = Path(__file__).resolve().parents[2]
AGAIN = """
import torch
from tests.gpu.gpu_videos import digest, made, models_on
torch.backends.cudnn.allow_tf32 = False
models = models_on(torch.device("{device}"))
print(*(digest(made(models)) for _ in range(2)))
"""


@pytest.fixture(scope="module")
def models(gpu) -> Models:
    return models_on(gpu)


def test_latents_are_the_cpus(gpu, models):
    here = latents(made(models_on(torch.device("cpu"))))
    there = latents(made(models))
    assert float((there - here).norm() / here.norm()) < 5e-3


def test_the_same_request_makes_the_same_bits_from_the_first_run_of_any_process_on(gpu, models):
    """The first of a process too: cuDNN's choice once differed there."""
    digests = [digest(made(models)) for _ in range(3)]
    code = AGAIN.format(device=gpu)
    asked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr[-2000:]
    assert {*digests, *asked.stdout.split()} == {digests[0]}, (digests, asked.stdout)


def held() -> int:
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.fixture
def all_of_the_card() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@needs_card
def test_memory_is_given_back_after_a_run_and_after_an_interrupt(models):
    made(models)
    before = held()
    made(models)
    assert held() == before
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
def test_a_third_of_the_card_makes_the_same_video(models, all_of_the_card):
    whole = digest(made(models))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1 / 3)
    assert digest(made(models)) == whole
