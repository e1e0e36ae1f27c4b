"""How far a fast execution's video is from the plain one's, and a GPU's from a CPU's, here made on a CPU."""

import json

import pytest
import torch
from bench_parts import case, tiny_bench

from benchmarks import measure, same_on_gpu
from benchmarks.__main__ import main
from benchmarks.measure import Bench, compare, video_of
from benchmarks.variants import OURS, parse_variant
from sdvg_core.devices import execution as compiling


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


@pytest.mark.heavy
def test_what_was_compared_before_an_error_is_printed(capsys, monkeypatch):
    """Catches minutes on a GPU lost with the one execution that fails, or that the time did not suffice for."""
    honest = Bench.run

    def run(self, asked, blocks=None):
        if asked.variant.name == "diffusers":
            raise RuntimeError
        return honest(self, asked, blocks)

    monkeypatch.setattr(Bench, "run", run)
    asked = ["--scale", "tiny", "--blocks", "3", "--check", "--executions", "diffusers"]
    with pytest.raises(RuntimeError):
        main([*asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"]
    assert list(found["checks"]) == ["ours"]


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


@pytest.mark.heavy
def test_a_real_run_tells_what_is_alike_and_what_could_not_be_run(capsys, monkeypatch):
    """The reference is made with other layers of the VAE; latents are the same until a picture is encoded."""

    def failing(work):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compiled", failing)
    assert same_on_gpu.main(["cpu", "--blocks", "2", "--variants", "plain", "compiled", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["variants"]
    assert found["plain"]["blocks_alike"] == 2
    assert found["plain"]["latents"] == 0
    assert found["plain"]["scores"] < 1e-2
    assert "compiling failed (no compiler)" in found["compiled"]["failed"]
