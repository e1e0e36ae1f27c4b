"""How far a fast execution's video is from the plain one's, and a GPU's from a CPU's, here made on a CPU."""

import pytest
import torch
from bench_parts import case, tiny_bench

from benchmarks import measure
from benchmarks.measure import compare, video_of
from benchmarks.variants import OURS, parse_variant


def test_every_execution_starts_from_the_same_noise(monkeypatch):
    """Whether two orders of sums round alike depends on the processor; other noise shows on any."""
    other = parse_variant("diffusers")  # on a CPU ours are planes
    bench = tiny_bench(OURS, other)
    plain, fast = (video_of(bench, case("r=2", execution, 4)) for execution in (OURS, other))
    found = compare(plain, fast)
    assert plain["latents"].shape[2] == 12
    assert found["latents_relative"] < 1e-3
    assert found["scores"] < 1e-3
    monkeypatch.setattr(measure, "SEED", measure.SEED + 1)
    assert compare(plain, video_of(bench, case("r=2", other, 4)))["latents_relative"] > 0.1


# --- the same on a GPU as on a CPU


def video(latents: float = 0.0, accepted: str = "raa", scores: float = 0.0) -> dict:
    made = torch.ones(1, 16, 9, 2, 2)
    made[:, :, 3:6] += latents
    judged = [None, [1.0, 2.0 + scores], [3.0, 4.0]]
    return {"latents": made, "accepted": [letter == "a" for letter in accepted], "scores": judged}


def test_the_greatest_differences_are_found():
    found = compare(video(), video(latents=-0.25, scores=0.5))
    assert (found["blocks_alike"], found["latents"], found["scores"]) == (3, 0.25, 0.5)
    assert found["latents_relative"] == pytest.approx(0.25 / 3**0.5)
    assert compare(video(), video())["latents"] == 0.0
