"""What is begun ahead, when, and how much of it is in vain."""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from overlap_parts import CPU, ENGINE, SECONDS, EagerLane, run_ahead, same
from thinned import every_pair
from tiny import CONTEXTS, POLICIES, PROMPT, condition, make_engine, make_noise, run, scripted

from sdvg_core.engine.lane import Lane, Unwanted
from sdvg_core.engine.overlap import speculate_overlapped
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import Condition, plan_spans
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator
from sdvg_core.errors import BadInput


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


# --- interrupts, errors and refusals


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


# --- a lane on a CUDA device, with stand-ins


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What streams are told, in order."""
    heard: list[str] = []

    class Stream:
        device = torch.device("cuda", 0)

        def __init__(self, device=None) -> None:
            pass

        def wait_stream(self, other) -> None:
            heard.append("wait for the caller")

        def synchronize(self) -> None:
            heard.append("finish")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return heard


def test_what_a_lane_made_stays_the_callers_until_the_callers_stream_has_read_it(told):
    """Catches: memory given back to the lane while the caller still reads it."""

    class Made:
        def __init__(self, is_cuda: bool) -> None:
            self.is_cuda, self.kept_for = is_cuda, []

        def record_stream(self, stream) -> None:
            self.kept_for.append(type(stream).__name__)

    on_device, on_host = Made(True), Made(False)
    lane = Lane(torch.device("cuda", 0), "test")
    lane.hand_over([on_device, on_host])
    lane.close()
    assert (on_device.kept_for, on_host.kept_for) == (["Stream"], [])


@pytest.mark.parametrize("error", [None, Unwanted(), RuntimeError("broken")])
def test_nothing_is_left_to_do_on_the_device_when_work_has_ended_however_it_ended(error, told):
    """Catches a block that nobody wants still being made while the next video begins."""

    def work() -> int:
        told.append("work")
        if error is not None:
            raise error
        return 5

    lane = Lane(torch.device("cuda", 0), "test")
    done = lane.submit(work)
    assert done.exception() is error
    lane.close()
    assert told == ["wait for the caller", "work", "finish"]
    assert error is not None or done.result() == 5


# --- the same video


PATTERNS = ["r" + "".join(rest) for rest in itertools.product("ar", repeat=8)][::19]
LANES = ("beside", "to the end")


@pytest.fixture(params=LANES)
def lane(request, monkeypatch):
    """How far wrong guesses come, which is otherwise a matter of chance."""
    if request.param == "to the end":
        monkeypatch.setattr("sdvg_core.engine.overlap.Lane", EagerLane)


def routers() -> dict[str, RouterConfig]:
    return {
        "reward": RouterConfig(tau=0.0),
        "a reward that keeps most": RouterConfig(tau=-2.0),
        "bail-out": RouterConfig(tau=100.0, bail_out=2),
        "random": RouterConfig(policy="random", rate=0.5),
        "anchor-only": RouterConfig(policy="anchor-only"),
        "always-draft": RouterConfig(policy="always-draft", forced_blocks=0),
        "always-target": RouterConfig(policy="always-target"),
        "repair": RouterConfig(tau=0.0, handover=1),
        "first block judged": RouterConfig(tau=0.0, forced_blocks=0),
    }


@every_pair("pattern, drafter_context, lane", PATTERNS, CONTEXTS, LANES, indirect=["lane"])
@pytest.mark.usefixtures("lane")
def test_every_route_makes_the_same_video_with_the_same_decisions(pattern, drafter_context):
    """Catches: a claimed draft that went on from another block; noise of another block."""
    ahead = run_ahead(make_engine(**ENGINE, undo=1), scripted(pattern), drafter_context=drafter_context)
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
    ahead = run_ahead(make_engine(**ENGINE, undo=1), router, drafter_context=drafter_context)
    same(ahead, run(make_engine(**ENGINE), router, drafter_context=drafter_context))


def test_a_prompt_that_changes_reaches_the_draft_made_ahead():
    """Catches: the condition of the block before."""
    other = condition(6, "a blue cube")

    def condition_of(index: int) -> Condition:
        return PROMPT if index < 4 else other

    router, engine = scripted("raaraaara"), make_engine(**ENGINE, undo=1)
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
    ahead = run_ahead(make_engine(**ENGINE, undo=1), router, condition_of=condition_of)
    same(ahead, run(make_engine(**ENGINE), router, condition_of=lambda index: other if index else PROMPT))
