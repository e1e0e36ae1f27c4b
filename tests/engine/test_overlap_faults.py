"""Interrupts, errors and refusals while two things are at work."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from overlap_parts import CPU, ENGINE, SECONDS, run_ahead
from tiny import POLICIES, PROMPT, make_engine, make_noise, scripted

from sdvg_core.engine.overlap import speculate_overlapped
from sdvg_core.engine.types import plan_spans
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator
from sdvg_core.errors import BadInput


class Stop(BaseException):
    """As a user's interrupt comes."""


class StoppedDrafter(WrappedGenerator):
    """A drafter that is interrupted in its n-th block, from 0, and only there: a host takes its flag down again."""

    def __init__(self, inner, at: int) -> None:
        super().__init__(inner)
        self.left = at

    def generate(self, history, span, noise, condition, given=(), stop=None):
        self.left -= 1
        if self.left == -1:
            raise Stop
        return super().generate(history, span, noise, condition, given, stop)


@pytest.mark.parametrize("pattern", ["raaaaaaaa", "rarararaa"])
@pytest.mark.parametrize("at", range(8))
def test_an_interrupt_in_a_draft_made_ahead_ends_the_run_and_leaves_no_thread(at, pattern):
    """Catches: the error of a draft that is called off being lost, and with it the user's wish to stop."""
    engine = make_engine(**ENGINE)
    before = threading.active_count()
    with pytest.raises(Stop):
        run_ahead(replace(engine, drafter=StoppedDrafter(engine.drafter, at)), scripted(pattern))
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
