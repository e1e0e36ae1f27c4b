"""How far a fast execution's video is from the plain one's."""

import json

import pytest
import torch
from bench_parts import case, tiny_bench

from benchmarks.__main__ import main
from benchmarks.measure import Bench, compare, video_of
from benchmarks.variants import OURS, parse_variant


def test_every_execution_starts_from_the_same_noise():
    other = parse_variant("diffusers")  # on a CPU ours are planes
    bench = tiny_bench(OURS, other)
    plain, fast = (video_of(bench, case("r=2", execution, 4)) for execution in (OURS, other))
    found = compare(plain, fast)
    assert plain["latents"].shape[2] == 12
    assert found["latents_relative"] < 1e-3
    # float32 in another order of sums, and so not the very same, but for torch 2.6
    assert found["scores"] < 1e-3
    assert found["scores"] > 0 or torch.__version__.startswith("2.6.")


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
