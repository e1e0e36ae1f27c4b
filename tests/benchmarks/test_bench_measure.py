"""Videos of tiny random models, and what is written down of each."""

import pytest
import torch
from bench_parts import case, tiny_bench, tiny_models

from benchmarks.measure import Bench
from benchmarks.variants import AS_PUBLISHED, OURS, parse_variant
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


@pytest.mark.heavy
def test_with_a_judge_a_video_counts_until_its_last_pixel_is_decoded(monkeypatch):
    """Every block is decoded once for the video, in target-only too, and a rejected draft by the judge alone."""
    name = "judge-tae"
    variant = parse_variant(name)
    bench, decoded = tiny_bench(variant), []
    full, judge = bench.setups[name].codec, bench.setups[name].judge

    def watched(codec, of):
        decode = codec.decode
        monkeypatch.setattr(
            codec, "decode", lambda z, state=None: decoded.append((of, z.shape[2])) or decode(z, state)
        )

    watched(full, "full")
    watched(judge, "judge")
    for route, by_judge in (("target-only", 4), ("r=1", 5)):
        decoded.clear()
        sample = bench.measure(case(route, variant, 4))
        assert decoded.count(("full", 1)) == 12
        assert decoded.count(("judge", 3)) == by_judge
        assert sample.video >= sample.arrivals[-1]
        assert sample.pixel_frames == 45
