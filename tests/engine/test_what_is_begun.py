"""What is begun ahead, when, and how much of it is in vain."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from overlap_parts import CPU, ENGINE, SECONDS, EagerLane, run_ahead, same
from tiny import PROMPT, make_engine, make_noise, run, scripted

from sdvg_core.engine.history import History
from sdvg_core.engine.lane import Unwanted
from sdvg_core.engine.overlap import _StoppableNoise, speculate_overlapped
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import plan_spans
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator


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
    """Catches: a guess that is never taken, so that everything is drafted twice; no guess after a remake."""
    monkeypatch.setattr("sdvg_core.engine.overlap.Lane", EagerLane)
    engine = make_engine(**ENGINE, undo=1)
    emitted = run_ahead(engine, scripted(pattern))
    assert len(engine.drafter.calls) == drafts
    assert len(engine.target.calls) == pattern.count("r")
    made = sum(e.record.draft.denoising_passes for e in emitted if e.record.draft)
    assert made == drafts * len(engine.drafter.timesteps)


def test_every_tensor_of_a_block_begun_ahead_is_handed_over(monkeypatch):
    """Catches: a block whose estimates the lane may overwrite while they are read. A CPU would never show it."""
    handed = []

    class Noting(EagerLane):
        def hand_over(self, tensors):
            handed.extend(map(id, tensors))

    monkeypatch.setattr("sdvg_core.engine.overlap.Lane", Noting)
    emitted = run_ahead(make_engine(**ENGINE, undo=True), scripted("raara"), blocks=5)
    assert {id(e.block.latents) for e in emitted} <= set(handed)


@pytest.mark.parametrize("handover", [1, 0])
def test_of_a_block_that_is_handed_over_only_its_first_steps_are_begun(handover, monkeypatch):
    """Catches: a whole draft begun where its first steps are wanted, all of it in vain."""
    monkeypatch.setattr("sdvg_core.engine.overlap.Lane", EagerLane)
    engine = make_engine(**ENGINE, undo=True)
    router = RouterConfig(policy="first", forced_blocks=3, handover=handover, whole_blocks=1)
    emitted = run_ahead(engine, router, blocks=5)
    made = sum(e.record.draft.denoising_passes for e in emitted if e.record.draft)
    assert made == 2 * handover + 2 * len(engine.drafter.timesteps)


@pytest.mark.parametrize("pattern", ["raaaaaaaa", "rarararaa", "rrrrrrrrr"])
def test_its_own_drafts_are_each_made_once_whatever_the_target_makes(pattern):
    """Catches: calling off a draft that goes on from the drafter's own."""
    engine = make_engine(**ENGINE)
    run_ahead(engine, scripted(pattern), drafter_context="own")
    assert [index for index, _ in engine.drafter.calls] == list(range(9))


class BusyDrafter(WrappedGenerator):
    busy = False

    def generate(self, history, span, noise, condition, given=(), stop=None):
        self.busy = True
        try:
            return super().generate(history, span, noise, condition, given, stop)
        finally:
            self.busy = False


class LonelyTarget(WrappedGenerator):
    def __init__(self, inner, drafter: BusyDrafter) -> None:
        super().__init__(inner)
        self.drafter = drafter

    def generate(self, history, span, noise, condition, given=(), stop=None):
        assert not self.drafter.busy, "a draft that nobody will take is still being made"
        return super().generate(history, span, noise, condition, given, stop)


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

    def generate(self, history, span, noise, condition, given=(), stop=None):
        self.begun.one_more()
        return super().generate(history, span, noise, condition, given, stop)


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
