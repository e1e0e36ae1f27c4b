"""The nodes on a GPU, with tiny random models: `pytest -m "comfyui and gpu" tests/comfyui/test_on_gpu.py`.

SDVG_DRY_GPU=1 runs them on the CPU, but for what only a GPU has.
"""

import os

import comfy.model_management as mm
import pytest
import torch
from host_run import held, make_job, same_video, video_of
from sdvg_pack.nodes.host.model import attach_origin

CUDA = torch.cuda.is_available()
pytestmark = [
    pytest.mark.comfyui,
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or os.environ.get("SDVG_DRY_GPU")), reason="no GPU"),
]
needs_card = pytest.mark.skipif(not CUDA, reason="only a GPU has it")


@pytest.fixture(scope="module")
def first(parts):
    """The first video of the process."""
    return video_of(make_job(parts))


def test_every_block_is_finite_and_timed(first):
    assert bool(first[0].isfinite().all())
    assert all(block.seconds.decode > 0 and block.seconds.total < 60 for block in first[2].blocks)


def test_later_runs_make_the_same_bits(parts, first, empty_store):
    """Catches: another order of kernels in a process's first run."""
    for _ in range(2):
        assert same_video(video_of(make_job(parts)), first)


def test_keys_in_eight_bits_move_the_latents_little(parts, first, empty_store):
    rounded = video_of(make_job(parts, kv_dtype="float8_e4m3fn"))
    assert float((rounded[1] - first[1]).norm() / first[1].norm()) < 0.05


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_layers_move_the_latents_by_rounding(parts, first, empty_store):
    for patcher in (parts.drafter, parts.target):
        attach_origin(patcher, compile="default")
    try:
        _, latents, report = video_of(make_job(parts))
    finally:
        for patcher in (parts.drafter, parts.target):
            attach_origin(patcher, compile="off")
    assert [note for note in report.notes if "are compiled" in note][1:]
    assert float((latents - first[1]).norm() / first[1].norm()) < 0.01


@needs_card
def test_models_are_given_back(parts, first):
    """And nothing else is kept."""
    mm.unload_all_models()
    mm.soft_empty_cache()
    held()
    assert torch.cuda.memory_allocated() < 64e6


@pytest.fixture
def small_share():
    torch.cuda.set_per_process_memory_fraction(0.1)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@needs_card
def test_tenth_of_the_card_makes_the_same_video(parts, first, empty_store, small_share):
    assert same_video(video_of(make_job(parts)), first)
