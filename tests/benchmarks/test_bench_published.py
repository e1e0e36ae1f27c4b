"""The authors' order of work, counted against ours."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from bench_parts import NINE, case
from tiny import BrightScorer, EchoCodec, latents_of, make_engine, make_generator, run

from benchmarks.variants import AS_PUBLISHED, OnceABlock, as_published
from sdvg_core.causal_wan.context import AnchorEncoder, Recompute
from sdvg_core.engine.protocols import WrappedGenerator


class Watched(WrappedGenerator):
    """Writes down each call: block, and how many steps were given."""

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []

    def generate(self, call):
        self.calls.append((call.span.index, len(call.handed_over)))
        return self.inner.generate(call)


class Frames(BrightScorer):
    """Writes down how many frames each call brings."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def score(self, frames, prompt):
        self.frames.append(frames.shape[1])
        return super().score(frames, prompt)


def watched_engine():
    engine = make_engine()
    return replace(engine, drafter=Watched(engine.drafter), target=Watched(engine.target), scorer=Frames())


@pytest.mark.parametrize("name", ["r=2", "anchor-only"])
def test_as_published_drafts_block_0_and_fills_the_targets_context_before_every_block(name):
    engine, chosen = watched_engine(), case(name, AS_PUBLISHED)
    made = run(as_published(engine, chosen.route), chosen.router)
    steps = len(engine.target.timesteps)
    assert [index for index, _ in engine.drafter.calls] == list(range(NINE))
    fills = [index for index, given in engine.target.calls if given == steps]
    remakes = [index for index, given in engine.target.calls if given == 0]
    assert fills == list(range(NINE))
    assert remakes == [i for i, keep in enumerate(chosen.route.keeps) if not keep]
    assert [e.record.decision.accepted for e in made] == list(chosen.route.keeps)


def test_as_published_scores_frame_by_frame_and_block_0_too():
    engine, chosen = watched_engine(), case("r=2", AS_PUBLISHED)
    run(as_published(engine, chosen.route), chosen.router)
    assert engine.scorer.frames == [1] * (9 + 8 * 12)
    unscored, anchor = watched_engine(), case("anchor-only", AS_PUBLISHED)
    run(as_published(unscored, anchor.route), anchor.router)
    assert unscored.scorer.frames == []


def test_a_context_is_prepared_once_a_block_and_the_same_as_if_it_were_prepared_anew():
    passes: Counter[str] = Counter()

    def count(kind: str) -> None:
        passes[kind] += 1

    codec = EchoCodec()
    plain = make_engine()
    drafter = make_generator(1, codec, name="drafter", encoder=AnchorEncoder(codec.encode))
    target = make_generator(2, codec, name="target", before_pass=count)
    target._context = OnceABlock(Recompute(encode_anchor=AnchorEncoder(codec.encode), frames=3))
    engine = replace(plain, drafter=drafter, target=target, codec=codec)
    chosen = case("r=4", AS_PUBLISHED)
    made = run(as_published(engine, chosen.route), chosen.router)
    assert passes == {"context": 8, "denoise": 5 * len(target.timesteps)}
    assert sum(e.record.draft.context_passes for e in made) == 8 + 8  # the drafter's, and the target's filled early
    assert sum(e.record.target.context_passes for e in made if e.record.target) == 0
    assert torch.equal(latents_of(made), latents_of(run(plain, case("r=4").router)))
