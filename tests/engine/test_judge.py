"""Two decoders: one judges drafts and shows them early, the other makes the video's pixels."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from thinned import in_turn
from tiny import (
    POLICIES,
    BrightScorer,
    EchoCodec,
    frames_of,
    latents_of,
    make_engine,
    planned,
    run,
    scripted,
)

from sdvg_core.engine.keys import Identities
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.reuse import Reuse
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run
from sdvg_core.engine.store import Store
from sdvg_core.errors import BadInput


class QuickCodec(EchoCodec):
    """Another decoder of the same latents: its frames are negatives, and an encode through it shows."""

    def decode(self, latents, state=None):
        frames, state = super().decode(latents, state)
        return 1 - frames, state

    def encode(self, frames):
        raise AssertionError("contexts and start images go through the codec that delivers")


def judged(engine: Engine) -> Engine:
    return replace(engine, judge=QuickCodec())


def made(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The video's latents and pixel frames, read as the command line and the node read them."""
    frames = []
    for shown in run.play():
        frames += [delivered.frames() for delivered in shown.delivered]
    history = shown.timeline.history
    return history.latents(0, history.frames), torch.cat(frames, dim=1)


def routes(count: int) -> list[str]:
    draw = random.Random(16)
    return ["r" + "".join(draw.choice("artd") for _ in range(8)) for _ in range(count)]


def same(one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(one[0], other[0]), "latents"
    assert torch.equal(one[1], other[1]), "pixels"


@in_turn("pattern, policy", routes(16), POLICIES)
def test_a_judge_changes_no_bit_of_the_video(pattern, policy):
    """Catches: a picture for a context from the judge."""
    plain = made(planned(make_engine(policy), scripted(pattern)))
    same(made(planned(judged(make_engine(policy)), scripted(pattern))), plain)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_clip_that_is_continued_is_the_same(policy):
    given = made(planned(make_engine(policy), scripted("rarararaa"), blocks=3))[0]
    plain = made(planned(make_engine(policy), scripted("rarraaarratd"), given=given))
    same(made(planned(judged(make_engine(policy)), scripted("rarraaarratd"), given=given)), plain)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_that_takes_up_the_blocks_of_an_earlier_one_is_the_same(policy):
    """The judge is no part of the models' keys: a judge that is added later makes no block again."""
    store = Store()
    plain = Identities(drafter="d", target="t", codec="c", scorer="s")
    with_judge = replace(plain, judge="j")

    def again(engine: Engine, identities: Identities, pattern: str) -> tuple[Run, tuple]:
        store.begin_run()
        run = planned(engine, scripted(pattern), reuse=Reuse(store=store, identities=identities))
        return run, made(run)

    _, first = again(make_engine(policy), plain, "ttdtdtddt")
    run, second = again(judged(make_engine(policy)), with_judge, "ttdtdtddt")
    assert len(run.reused) == 9
    same(second, first)
    run, third = again(judged(make_engine(policy)), with_judge, "rtdtddddt")
    assert len(run.reused) == 5
    same(third, made(planned(make_engine(policy), scripted("rtdtddddt"))))


def test_scores_of_one_decoder_are_not_taken_for_those_of_another():
    store, router = Store(), RouterConfig(tau=0.0)

    def again(judge: str) -> int:
        store.begin_run()
        engine = judged(make_engine()) if judge else make_engine()
        engine = replace(engine, scorer=BrightScorer())
        identities = Identities(drafter="d", target="t", codec="c", scorer="s", judge=judge)
        made(planned(engine, router, blocks=5, reuse=Reuse(store=store, identities=identities)))
        return engine.scorer.calls

    first = again("")
    assert first == 4
    assert again("") == 0, "what is known is not scored again"
    assert again("judge 1") > 0, "a judge shows other frames"
    assert again("judge 1") == 0
    assert again("judge 2") > 0


def test_the_verdict_and_the_preview_are_the_judges_and_the_video_is_not():
    router, engine = RouterConfig(tau=0.0), judged(make_engine())
    emitted = run(engine, router)
    seen = torch.cat([one.preview for one in emitted], dim=1)
    at_once, _ = EchoCodec().decode(latents_of(emitted))
    assert torch.equal(frames_of(emitted), at_once)
    assert torch.equal(seen, 1 - at_once)
    for one in emitted[1:]:
        draft = one.draft
        if one.record.decision.accepted:
            shown = BrightScorer().score(one.preview, "")
            assert one.record.decision.score == float(shown.min())
        else:
            assert draft is not None
            assert one.record.decision.score < 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rejected_draft_never_meets_the_full_decoder(policy):
    engine = judged(make_engine(policy))
    emitted = run(engine, scripted("rrararrar"))
    assert engine.judge.decodes == 9 + 5, "every draft and every remade block"
    frames_of(emitted)
    assert engine.codec.decodes == 27, "every committed latent frame, once"


class Failing(EchoCodec):
    """A decoder whose frames are not finite from its fifth call on."""

    def decode(self, latents, state=None):
        frames, state = super().decode(latents, state)
        return (frames if self.decodes <= 4 else frames * torch.nan), state


@pytest.mark.parametrize("policy", POLICIES)
def test_pixels_that_are_not_finite_are_refused_whoever_decodes_them(policy):
    engine = replace(judged(make_engine(policy)), codec=Failing())
    with pytest.raises(BadInput, match="block 2 has NaN or infinity in its decoded frames"):
        made(planned(engine, scripted("raaaaaaaa")))


def test_the_blocks_of_a_run_that_is_left_early_can_still_be_read():
    stream = planned(judged(make_engine("incremental")), scripted("raaaaaaaa")).blocks()
    emitted = [next(stream), next(stream)]
    stream.close()
    assert torch.equal(frames_of(emitted), made(planned(make_engine("incremental"), scripted("ra"), blocks=2))[1])
