"""Working ahead changes when blocks are begun, and nothing else.

Planted mistakes and the test that turned red are named in the docstrings.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import (
    CONTEXTS,
    POLICIES,
    PROMPT,
    condition,
    frames_of,
    latents_of,
    make_engine,
    make_noise,
    run,
    scripted,
)

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.errors import BadInput
from sdvg_core.history import History
from sdvg_core.lane import Lane, Unwanted
from sdvg_core.overlap import _StoppableNoise, speculate_overlapped
from sdvg_core.router import RouterConfig
from sdvg_core.spans import plan_spans
from sdvg_core.speculate import Emitted, Engine
from sdvg_core.types import Block, Condition
from sdvg_core.wrapping import WrappedCodec, WrappedGenerator

CPU = torch.device("cpu")
# A window of nine latent frames is full from the third block on: there a wrong guess has overwritten something.
ENGINE: dict[str, Any] = {"policy": "incremental", "window": 9, "sink": 3}
PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)][::19]
SECONDS = 30.0  # how long a test waits before it says that something did not come


def run_ahead(engine: Engine, router: RouterConfig, *, blocks: int = 9, condition_of=lambda _: PROMPT, **options):
    spans = plan_spans(blocks, engine.target.block_frames)
    return list(speculate_overlapped(engine, router, spans, make_noise(), condition_of, device=CPU, **options))


class EagerLane(Lane):
    """A lane that has done its work before it returns: every wrong guess is made to its end."""

    def submit(self, work):
        done: Future = Future()
        done.set_result(work())
        return done


@pytest.fixture(params=["beside", "to the end"])
def lane(request, monkeypatch):
    """How far wrong guesses come, which is otherwise a matter of chance."""
    if request.param == "to the end":
        monkeypatch.setattr("sdvg_core.overlap.Lane", EagerLane)


def same(ahead: list[Emitted], alone: list[Emitted]) -> None:
    assert torch.equal(latents_of(ahead), latents_of(alone))
    assert torch.equal(frames_of(ahead), frames_of(alone))
    assert [e.record.decision for e in ahead] == [e.record.decision for e in alone]


def routers() -> dict[str, RouterConfig]:
    return {
        "reward": RouterConfig(tau=0.0),
        "a reward that keeps most": RouterConfig(tau=-2.0),
        "bail-out": RouterConfig(tau=100.0, bail_out=2),
        "percentile": RouterConfig(policy="percentile"),
        "random": RouterConfig(policy="random", rate=0.5),
        "anchor-only": RouterConfig(policy="anchor-only"),
        "always-draft": RouterConfig(policy="always-draft", force_first=False),
        "always-target": RouterConfig(policy="always-target"),
        "repair": RouterConfig(tau=0.0, repair_step=1),
        "first block judged": RouterConfig(tau=0.0, force_first=False),
    }


@pytest.mark.parametrize("drafter_context", CONTEXTS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.usefixtures("lane")
def test_every_route_makes_the_same_video_with_the_same_decisions(pattern, drafter_context):
    """Catches: a claimed draft that went on from another block; noise of another block; a cache whose newest block
    was not taken back (`restore` left out)."""
    ahead = run_ahead(make_engine(**ENGINE, undo=True), scripted(pattern), drafter_context=drafter_context)
    same(ahead, run(make_engine(**ENGINE), scripted(pattern), drafter_context=drafter_context))


@pytest.mark.parametrize("frames", [2, 3, 6])
@pytest.mark.parametrize("pattern", PATTERNS[::2])
def test_a_drafter_whose_context_begins_with_a_picture_makes_the_same_video(pattern, frames):
    """Catches: another frame's pixels; those of a block that was decoded from another state."""
    ahead = run_ahead(make_engine("recompute", frames=frames), scripted(pattern))
    same(ahead, run(make_engine("recompute", frames=frames), scripted(pattern)))


@pytest.mark.parametrize("drafter_context", CONTEXTS)
@pytest.mark.parametrize("name", routers())
def test_every_policy_decides_the_same(name, drafter_context):
    router = routers()[name]
    ahead = run_ahead(make_engine(**ENGINE, undo=True), router, drafter_context=drafter_context)
    same(ahead, run(make_engine(**ENGINE), router, drafter_context=drafter_context))


@pytest.mark.parametrize("name", routers())
def test_every_policy_decides_the_same_with_a_context_that_begins_with_a_picture(name):
    same(run_ahead(make_engine("recompute"), routers()[name]), run(make_engine("recompute"), routers()[name]))


def test_without_copies_of_what_is_overwritten_the_video_is_the_same_too():
    router = scripted("raararaar")
    same(run_ahead(make_engine(**ENGINE), router), run(make_engine(**ENGINE), router))


def test_a_prompt_that_changes_reaches_the_draft_made_ahead():
    """Catches: the condition of the block before."""
    other = condition(6, "a blue cube")

    def condition_of(index: int) -> Condition:
        return PROMPT if index < 4 else other

    router, engine = scripted("raaraaara"), make_engine(**ENGINE, undo=True)
    ahead = run_ahead(engine, router, condition_of=condition_of)
    same(ahead, run(make_engine(**ENGINE), router, condition_of=condition_of))
    assert len(engine.drafter.calls) == 8 + 2, "no draft but those on a wrong guess was made anew"


def test_a_draft_for_another_prompt_than_the_one_asked_for_is_not_taken():
    """Catches: taking whatever was begun."""
    other = condition(6, "a blue cube")
    asked: list[int] = []

    def condition_of(index: int) -> Condition:
        asked.append(index)
        return other if asked.count(index) == 2 else PROMPT

    router = RouterConfig(policy="anchor-only")
    ahead = run_ahead(make_engine(**ENGINE, undo=True), router, condition_of=condition_of)
    same(ahead, run(make_engine(**ENGINE), router, condition_of=lambda index: other if index else PROMPT))


@pytest.mark.parametrize(
    ("pattern", "drafts"),
    [
        # Block 0 is never drafted; each remade block's successor is drafted twice, but for the last.
        ("raaaaaaaa", 8),
        ("raaaaaaar", 8),
        ("raaaraaaa", 9),
        ("rarararaa", 11),
    ],
)
def test_a_draft_is_made_anew_only_where_the_guess_was_wrong(pattern, drafts, monkeypatch):
    """Catches: a guess that is never taken, so that everything is drafted twice; no guess after a remake; the work
    on wrong guesses missing in the records."""
    monkeypatch.setattr("sdvg_core.overlap.Lane", EagerLane)
    engine = make_engine(**ENGINE, undo=True)
    emitted = run_ahead(engine, scripted(pattern))
    assert len(engine.drafter.calls) == drafts
    assert len(engine.target.calls) == pattern.count("r")
    made = sum(e.record.draft.denoising_passes for e in emitted if e.record.draft)
    assert made == drafts * len(engine.drafter.timesteps)


def test_after_a_bail_out_one_draft_at_most_is_made_in_vain():
    """Catches: drafting on beside the target for the rest of the run."""
    engine = make_engine(**ENGINE, undo=True)
    run_ahead(engine, RouterConfig(tau=100.0, bail_out=2))
    # Blocks 1 and 2 are judged, and each has one wrong guess; block 3's is drafted after the remake of 2.
    assert len(engine.drafter.calls) <= 2 + 2 + 1
    assert len(engine.target.calls) == 9


@pytest.mark.parametrize("pattern", ["raaaaaaaa", "rarararaa", "rrrrrrrrr"])
def test_its_own_drafts_are_each_made_once_whatever_the_target_makes(pattern):
    """Catches: calling off a draft that goes on from the drafter's own."""
    engine = make_engine(**ENGINE)
    run_ahead(engine, scripted(pattern), drafter_context="own")
    assert [index for index, _ in engine.drafter.calls] == list(range(9))


def test_beside_its_own_drafts_the_target_makes_nothing_that_is_not_taken():
    """Catches: a target that goes on from the drafter's own video where the policy is certain to ask it."""
    engine, router = make_engine(**ENGINE), RouterConfig(policy="random", rate=0.5)
    emitted = run_ahead(engine, router, drafter_context="own")
    assert len(engine.target.calls) == sum(e.record.author == "target" for e in emitted) > 2


class BusyDrafter(WrappedGenerator):
    busy = False

    def generate(self, history, span, noise, condition, given=()):
        self.busy = True
        try:
            return super().generate(history, span, noise, condition, given)
        finally:
            self.busy = False


class LonelyTarget(WrappedGenerator):
    def __init__(self, inner, drafter: BusyDrafter) -> None:
        super().__init__(inner)
        self.drafter = drafter

    def generate(self, history, span, noise, condition, given=()):
        assert not self.drafter.busy, "a draft that nobody will take is still being made"
        return super().generate(history, span, noise, condition, given)


class SlowNoise:
    """Noise that takes its time, so that a draft is still under way when its block has been judged."""

    def __init__(self) -> None:
        self.noise = make_noise()

    def draw(self, span, slot):
        threading.Event().wait(0.02)
        return self.noise.draw(span, slot)


def test_a_wrong_guess_is_called_off_before_the_target_begins():
    """Catches: leaving it to the next draft to notice."""
    engine = make_engine(**ENGINE)
    drafter = BusyDrafter(engine.drafter)
    engine = replace(engine, drafter=drafter, target=LonelyTarget(engine.target, drafter))
    emitted = list(
        speculate_overlapped(
            engine, scripted("rararar"), plan_spans(7, 3), SlowNoise(), lambda _: PROMPT, device=CPU
        )
    )
    same(emitted, run(make_engine(**ENGINE), scripted("rararar"), blocks=7))


def test_nothing_is_drafted_that_the_policy_never_asks_for():
    engine = make_engine(**ENGINE)
    run_ahead(engine, RouterConfig(policy="always-target"))
    assert engine.drafter.calls == ()


class Begun:
    """How many blocks a model has begun, for whoever waits for the next."""

    def __init__(self) -> None:
        self.blocks, self.changed = 0, threading.Condition()

    def one_more(self) -> None:
        with self.changed:
            self.blocks += 1
            self.changed.notify_all()

    def wait_for(self, blocks: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.blocks >= blocks, SECONDS)


class WaitingCodec(WrappedCodec):
    """A codec that decodes its n-th block, from 0, only once so many others have been begun, and `ahead` more."""

    def __init__(self, inner, begun: Begun, ahead: int) -> None:
        super().__init__(inner)
        self.begun, self.ahead, self.met = begun, ahead, []

    def decode(self, latents, state=None):
        self.met.append(self.begun.wait_for(len(self.met) + self.ahead))
        return super().decode(latents, state)


class CountedModel(WrappedGenerator):
    def __init__(self, inner, begun: Begun) -> None:
        super().__init__(inner)
        self.begun = begun

    def generate(self, history, span, noise, condition, given=()):
        self.begun.one_more()
        return super().generate(history, span, noise, condition, given)


@pytest.mark.parametrize(
    ("model", "router", "ahead"),
    [
        # The first block is not the drafter's: while it is decoded, the drafter has begun one.
        ("drafter", scripted("raaaaaaaa"), 1),
        # So that a comparison with the target alone is fair: it gets what the routed run gets.
        ("target", RouterConfig(policy="always-target"), 2),
    ],
    ids=["drafts", "target alone"],
)
def test_the_next_block_is_begun_before_the_newest_is_decoded(model, router, ahead):
    """Catches: a lane that does its work before it returns; blocks that are begun after the decoding."""
    begun, engine = Begun(), make_engine(**ENGINE)
    codec = WaitingCodec(engine.codec, begun, ahead)
    engine = replace(engine, codec=codec, **{model: CountedModel(getattr(engine, model), begun)})
    stream = speculate_overlapped(engine, router, plan_spans(9, 3), make_noise(), lambda _: PROMPT, device=CPU)
    for _ in range(8):  # the last block has no next one
        next(stream)
    stream.close()
    assert codec.met == [True] * 8


def test_a_block_that_nobody_wants_any_more_ends_at_its_next_step():
    """Catches: a wrong guess that is made to its end while the target waits."""
    drafter, span = make_engine(**ENGINE).drafter, plan_spans(1, 3)[0]
    noise = _StoppableNoise(make_noise())
    made = drafter.generate(History(), span, noise, PROMPT)
    assert noise.draws == len(drafter.timesteps)
    noise.unwanted.set()
    with pytest.raises(Unwanted):
        drafter.generate(History(), span, noise, PROMPT)
    assert noise.draws == len(drafter.timesteps)
    assert torch.equal(made.latents, drafter.generate(History(), span, make_noise(), PROMPT).latents)


class Stop(BaseException):
    """As a user's interrupt comes."""


class StoppedDrafter(WrappedGenerator):
    """A drafter that is interrupted in its n-th block, from 0, and only there: a host takes its flag down again."""

    def __init__(self, inner, at: int) -> None:
        super().__init__(inner)
        self.left = at

    def generate(self, history, span, noise, condition, given=()):
        self.left -= 1
        if self.left == -1:
            raise Stop
        return super().generate(history, span, noise, condition, given)


@pytest.mark.parametrize("pattern", ["raaaaaaaa", "rarararaa"])
@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_in_a_draft_made_ahead_ends_the_run_and_leaves_no_thread(at, pattern):
    """Catches: the error of a draft that is called off being lost, and with it the user's wish to stop."""
    engine = make_engine(**ENGINE)
    before = threading.active_count()
    with pytest.raises(Stop):
        run_ahead(replace(engine, drafter=StoppedDrafter(engine.drafter, at)), scripted(pattern))
    assert threading.active_count() == before


def test_a_run_that_is_left_early_leaves_no_thread():
    before = threading.active_count()
    engine, spans = make_engine(**ENGINE), plan_spans(9, 3)
    stream = speculate_overlapped(engine, scripted("raaaaaaaa"), spans, make_noise(), lambda _: PROMPT, device=CPU)
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    assert threading.active_count() == before


class WatchedNoise:
    """Noise that says when the third block's is drawn."""

    def __init__(self) -> None:
        self.noise, self.third_begun = make_noise(), threading.Event()

    def draw(self, span, slot):
        if span.index == 2:
            self.third_begun.set()
        return self.noise.draw(span, slot)


class FailingCodec(WrappedCodec):
    """A codec that fails in the second block, when the third draft has begun and waits for a picture of it."""

    left = 3

    def __init__(self, inner, third_begun: threading.Event) -> None:
        super().__init__(inner)
        self.third_begun = third_begun

    def decode(self, latents, state=None):
        self.left -= latents.shape[2]
        if self.left < 0:
            assert self.third_begun.wait(SECONDS)
            raise RuntimeError("the decoder's own words")
        return super().decode(latents, state)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_error_beside_a_draft_is_the_one_that_is_raised(policy):
    """Catches: a drafter left waiting for a frame that will never be decoded; then this test hangs."""
    engine, noise = make_engine(policy), WatchedNoise()
    engine = replace(engine, codec=FailingCodec(engine.codec, noise.third_begun))
    spans = plan_spans(9, 3)
    with pytest.raises(RuntimeError, match="the decoder's own words"):
        list(speculate_overlapped(engine, scripted("raaaaaaaa"), spans, noise, lambda _: PROMPT, device=CPU))


def test_a_drafter_that_needs_the_pixels_of_its_own_drafts_is_refused():
    with pytest.raises(BadInput, match="incremental policy"):
        run_ahead(make_engine("recompute"), scripted("raa"), blocks=3, drafter_context="own")


def history_of(blocks: int) -> History:
    made = run(make_engine(**ENGINE), scripted("r" * blocks), blocks=blocks)
    return made[-1].timeline.history


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("undo", [True, False])
def test_a_wrong_guess_costs_one_context_pass_if_what_it_overwrote_is_known(undo, blocks):
    """The block after `blocks` others is first a draft, then another.

    Catches: the copy taken after the write; copies of other slots; the newest block not passed anew.
    """
    kinds: list[str] = []
    drafter = make_engine(**ENGINE, undo=undo, before_pass=kinds.append).drafter
    history, spans, noise = history_of(blocks), plan_spans(blocks + 2, 3), make_noise()
    draft, other = (
        Block(spans[blocks], model.generate(history, spans[blocks], noise, PROMPT).latents, PROMPT)
        for model in (drafter, make_engine(**ENGINE).target)
    )
    following = spans[blocks + 1]
    drafter.generate(history.commit(draft), following, noise, PROMPT)
    before = kinds.count("context")
    made = drafter.generate(history.commit(other), following, noise, PROMPT)

    fresh = make_engine(**ENGINE).drafter.generate(history.commit(other), following, noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)
    window_was_full = following.stop > ENGINE["window"]
    assert kinds.count("context") - before == (blocks + 1 if window_was_full and not undo else 1)


def test_two_steps_back_are_made_anew_from_the_beginning():
    """What was overwritten is known for one block only.

    Catches: a copy used twice; one that is taken of slots which already hold a newer block.
    """
    drafter, target = make_engine(**ENGINE, undo=True).drafter, make_engine(**ENGINE).target
    history, spans, noise = history_of(4), plan_spans(7, 3), make_noise()
    wrong = history
    for span in spans[4:6]:
        wrong = wrong.commit(Block(span, drafter.generate(wrong, span, noise, PROMPT).latents, PROMPT))
        drafter.generate(wrong, spans[span.index + 1], noise, PROMPT)
    back = History(blocks=wrong.blocks[:-1], horizon=wrong.horizon)
    drafter.generate(back, spans[5], noise, PROMPT)
    other = history.commit(Block(spans[4], target.generate(history, spans[4], noise, PROMPT).latents, PROMPT))
    made = drafter.generate(other, spans[5], noise, PROMPT)
    fresh = make_engine(**ENGINE).drafter.generate(other, spans[5], noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)


class BreakingOps(TorchOps):
    """Operations that fail once, in the middle of a forward pass."""

    left = -1

    def attention(self, q, k, v):
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().attention(q, k, v)


def test_a_context_pass_that_broke_off_is_not_taken_for_one_that_can_be_undone():
    """Catches: a copy from before the pass that is still there after it."""
    ops = BreakingOps(torch.float32)
    drafter = make_engine(**ENGINE, undo=True, ops=ops).drafter
    target, history = make_engine(**ENGINE).target, history_of(4)
    spans, noise = plan_spans(8, 3), make_noise()
    drafter.generate(history, spans[4], noise, PROMPT)
    longer = history
    for span in spans[4:6]:
        longer = longer.commit(Block(span, target.generate(longer, span, noise, PROMPT).latents, PROMPT))
    # Block 4's context takes both attentions of its layers but the last one's; block 5's breaks in its first layer.
    ops.left = 4
    with pytest.raises(Stop):
        drafter.generate(longer, spans[6], noise, PROMPT)
    other = history.commit(Block(spans[4], drafter.generate(history, spans[4], noise, PROMPT).latents, PROMPT))
    made = drafter.generate(other, spans[5], noise, PROMPT)
    fresh = make_engine(**ENGINE).drafter.generate(other, spans[5], noise, PROMPT)
    assert torch.equal(made.latents, fresh.latents)
