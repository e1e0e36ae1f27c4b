"""Videos of tiny random models, and what is written down of each."""

import pytest
import torch
from bench_parts import case, tiny_bench, tiny_models

from benchmarks.measure import Bench
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
