"""Videos of tiny random models, and what is written down of each."""

import pytest
import torch
from bench_parts import case, tiny_bench, tiny_models
from tiny import make_engine, run

from benchmarks.measure import Bench, metered, rounds
from benchmarks.variants import AS_PUBLISHED, OURS
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.errors import BadInput


@pytest.fixture(scope="module")
def bench() -> Bench:
    return tiny_bench()


def test_target_only_decodes_every_block_and_drafts_none(bench, monkeypatch):
    """The baseline pays for its own decode, in every execution."""
    honest, decoded = WanCodec.decode, []

    def decode(self, latents, state=None):
        decoded.append(latents.shape[2])
        return honest(self, latents, state)

    monkeypatch.setattr(WanCodec, "decode", decode)
    for execution in (OURS, AS_PUBLISHED):
        decoded.clear()
        sample = bench.measure(case("target-only", execution, 4))
        assert decoded == [3] * 4
        assert sample.passes["decodes"] == 4
        assert sample.passes["drafter_denoising"] == sample.passes["drafter_context"] == 0
        assert sample.parts.decode > 0
        assert sample.parts.draft == sample.parts.score == 0


def test_a_route_that_was_not_taken_is_no_result(bench, monkeypatch):
    monkeypatch.setattr(type(tiny_models().scorer), "score", lambda *_: torch.tensor([float("nan")]))
    with pytest.raises(BadInput, match="was not finite"):
        bench.measure(case("r=1", OURS, 4))


def test_rounds_are_interleaved_and_an_execution_is_made_ready_just_before_its_first_video(bench, monkeypatch):
    """Catches a run that is stopped while the last execution compiles, and has measured nothing of the others."""
    done = []
    monkeypatch.setattr(Bench, "measure", lambda self, asked: done.append(asked))
    ours, published = (
        [case(name, execution) for name in ("target-only", "r=1")] for execution in (OURS, AS_PUBLISHED)
    )
    list(rounds(bench, [*ours, *published], 3, lambda asked: done.append(asked.variant.name)))
    assert done == ["ours", *ours, "as-published", *published, *[*ours, *published] * 2]


class Rising:
    """A gauge whose every reading is higher than the last."""

    def __init__(self):
        self.cleared = self.read = 0

    def clear(self):
        self.cleared += 1

    def peak(self):
        self.read += 1
        return self.read


def test_memory_is_read_around_every_part_of_the_work():
    gauge, peaks = Rising(), {}
    run(metered(make_engine(), gauge, peaks), case("r=2").router)
    assert set(peaks) == {"draft", "decode", "score", "target"}
    assert gauge.cleared == gauge.read == 8 + 8 + 3 + (8 + 3)
    assert max(peaks.values()) == gauge.read
