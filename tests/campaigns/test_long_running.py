"""Hundreds of runs in one process, and a video of hundreds of blocks: nothing grows, nothing is left open."""

import gc
import os
import random
import signal
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import av
import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "faults"))
from faulty import REQUEST, footprint, make_loaded, make_video, quick, resident_bytes
from torch._subclasses.fake_tensor import FakeTensor

from sdvg_core.engine.records import BlockRecord
from sdvg_core.files.outputs import LATENTS, VIDEO
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import First, Gate, Route
from sdvg_core.text.prompts import Conditions
from sdvg_core.weights.latents import load_latents
from tests.support.tiny import POLICIES, condition, scripted

ROUTERS = (
    Route(Gate(0.3)),
    Route(Gate(0.3, bail_out=2)),
    Route(First(1)),
    scripted("rarararar", handover=1),
)
MEGABYTE = 1 << 20
pytestmark = pytest.mark.exhaustive


def request_of(number: int, draw: random.Random) -> tuple[VideoRequest, Conditions]:
    """Return a size, a length, a router and prompts that differ from run to run."""
    request = replace(
        REQUEST,
        blocks=draw.randint(1, 5),
        seed=number,
        width=draw.choice((16, 20, 24, 32)),
        height=draw.choice((16, 20, 24, 32)),
        route=draw.choice(ROUTERS),
        drafter_context=draw.choice(("committed", "own")),
    )
    later = ((2, condition(number + 1000)),) if draw.random() < 0.5 else ()
    return request, Conditions(((0, condition(number)), *later))


def run_many(runs: int, folder: Path) -> tuple[dict[str, int], dict[str, int], int]:
    """Return what was held after the third round of all models, what after the last run, and the bytes between."""
    # Two pairs of either context policy, as a user has who goes back and forth between workflows.
    models = [make_loaded(policy) for policy in ("recompute", "incremental", "recompute", "incremental")]
    draw = random.Random(1)
    settled: dict[str, int] = {}
    bytes_then = 0
    with quick():
        for number in range(runs):
            if number == 3 * len(models):
                settled = footprint()
                bytes_then = resident_bytes()
            request, conditions = request_of(number, draw)
            make_video(models[number % len(models)], folder, request, conditions=conditions)
    return settled, footprint(), resident_bytes() - bytes_then


def test_hundreds_of_runs_hold_no_more(tmp_path):
    """Of changing sizes, routes and contexts: no more than twelve of them do."""
    settled, after, grown = run_many(300, tmp_path)
    # A memo holds the last run's blocks, of which there are 1 to 5, in four sets of models.
    assert after["tensors"] <= settled["tensors"] + 4 * 4 * 5
    assert after["files"] == settled["files"]
    assert after["threads"] == settled["threads"]
    assert grown < 32 * MEGABYTE


# --- one long video


def live_bytes() -> int:
    """Bytes of the storages of all live tensors but the shadows that compiling leaves behind."""
    gc.collect()
    tensors = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.Tensor) and type(thing) is not FakeTensor
    ]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


BLOCKS = 1000
KILLED = 400


def long_video(folder: Path, policy: str, stop_at: int = 0) -> dict[str, list[float]]:
    """Make a video of 1,000 blocks, or be killed in the middle; return what was held after each, and when."""
    noted: dict[str, list[float]] = {"bytes": [], "when": []}

    def note(record: BlockRecord) -> None:
        if record.span.index + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)
        noted["when"].append(time.perf_counter())
        if record.span.index % 100 == 99:
            noted["bytes"].append(live_bytes())

    options = {"window": 9, "sink": 3, "relative": True, "flush": True} if policy == "incremental" else {}
    scenes = [(at, replace(condition(at), cut=at % 200 == 0)) for at in range(0, BLOCKS, 100)]
    request = replace(REQUEST, blocks=BLOCKS, colour_hold=0.3)
    with quick():
        report = make_video(
            make_loaded(policy, **options), folder, request, note, conditions=Conditions(tuple(scenes))
        )
    noted["drift"] = [record.drift or 0.0 for record in report.blocks]
    return noted


@pytest.fixture(scope="module", params=POLICIES)
def unbroken(request, tmp_path_factory) -> tuple[str, Path, dict[str, list[float]]]:
    """A video that was never killed: its policy, its folder, and what was held."""
    folder = tmp_path_factory.mktemp("unbroken") / "video"
    return request.param, folder, long_video(folder, request.param)


def test_thousand_blocks_hold_only_their_latents(unbroken):
    """Catches: frames, drafts or keys of blocks that are on the disk, kept until the end; a cost that grows."""
    _, folder, noted = unbroken
    latents = load_latents(folder / LATENTS).latents.nbytes / BLOCKS
    grown = [(later - earlier) / 100 for earlier, later in pairwise(noted["bytes"])]
    assert max(grown) <= 1.1 * latents, grown
    took = [later - earlier for earlier, later in pairwise(noted["when"])]
    assert median(took[-200:]) <= 1.5 * median(took[100:300]), (median(took[100:300]), median(took[-200:]))
    with av.open(str(folder / VIDEO)) as video:
        assert sum(1 for _ in video.decode(video=0)) == 9 + (BLOCKS - 1) * 12


def test_killed_thousand_blocks_resume_to_the_same(unbroken, tmp_path):
    policy, folder, noted = unbroken
    child = os.fork()
    if child == 0:
        long_video(tmp_path / "killed", policy, KILLED)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed = long_video(tmp_path / "killed", policy)
    assert resumed["drift"] == noted["drift"]
    expected = load_latents(folder / LATENTS).latents
    assert torch.equal(load_latents(tmp_path / "killed" / LATENTS).latents, expected)
