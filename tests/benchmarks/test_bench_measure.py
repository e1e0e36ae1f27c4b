"""Videos of tiny random models, and what is written down of each."""

import pytest
import torch
from bench_parts import case, tiny_bench, tiny_models

from benchmarks.measure import Bench
from benchmarks.variants import OURS
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.errors import BadInput


@pytest.fixture(scope="module")
def bench() -> Bench:
    return tiny_bench()


def test_target_only_decodes_every_block_and_drafts_none(bench, monkeypatch):
    """The baseline pays for its own decode."""
    honest, decoded = WanCodec.decode, []

    def decode(self, latents, state=None):
        decoded.append(latents.shape[2])
        return honest(self, latents, state)

    monkeypatch.setattr(WanCodec, "decode", decode)
    sample = bench.measure(case("target-only", OURS, 4))
    assert decoded == [3] * 4
    assert sample.passes["decodes"] == 4
    assert sample.passes["drafter_denoising"] == sample.passes["drafter_context"] == 0
    assert sample.parts.decode > 0
    assert sample.parts.draft == sample.parts.score == 0


def test_a_route_that_was_not_taken_is_no_result(bench, monkeypatch):
    monkeypatch.setattr(type(tiny_models().scorer), "score", lambda *_: torch.tensor([float("nan")]))
    with pytest.raises(BadInput, match="was not finite"):
        bench.measure(case("r=1", OURS, 4))


@pytest.mark.parametrize(
    ("name", "passes", "scored"),
    [
        ("r=1+1", {"target_denoising": 4 + 3, "drafter_denoising": 12, "decodes": 5}, [9, 12, 12, 12]),
        ("cascade=1+3", {"target_denoising": 4 + 1, "drafter_denoising": 12, "decodes": 5}, [4, 4, 4]),
        ("stride=2+2", {"target_denoising": 4 + 2, "drafter_denoising": 4 + 2 + 4, "decodes": 4}, []),
    ],
)
def test_a_handover_a_cascade_and_a_stride_take_the_passes_their_name_says(
    bench, monkeypatch, name, passes, scored
):
    """Catches: a cascade whose scorer does no work, or that goes on to the other frames; a handover of nothing."""
    scorer = type(tiny_models().scorer)
    honest, counted = scorer.score, []

    def score(self, frames, prompt):
        counted.append(frames.shape[1])
        return honest(self, frames, prompt)

    monkeypatch.setattr(scorer, "score", score)
    made = bench.measure(case(name, OURS, 4)).passes
    assert {kind: made[kind] for kind in passes} == passes
    assert counted == scored[-len(counted) or len(scored) :]
