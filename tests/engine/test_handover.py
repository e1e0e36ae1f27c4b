"""The first m blocks, blocks the drafter begins and the target finishes, drafts that stop early: bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from guided import BLOCKS, CONTROL, controlled, engine_of, guided_latents, restyled, run_of

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.plan import Roles, check_available
from sdvg_core.engine.protocols import BlockGenerator, WrappedGenerator
from sdvg_core.engine.types import Generated, History, Span, plan_spans
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import Strength
from sdvg_core.settings.route import First, Gate, Reason, Route, Stride, TargetOnly, WorstFrame
from tests.support.thinned import every_pair, in_turn
from tests.support.tiny import (
    CONTEXTS,
    POLICIES,
    PROMPT,
    BrightScorer,
    Script,
    frames_of,
    latents_of,
    make_engine,
    make_framewise,
    make_noise,
    planned_blocks,
    run,
    scripted,
)

FOUR = {"schedule": "four-step"}


class CutDrafter(WrappedGenerator):
    """Stops after so many steps, as if the others were handed over."""

    def __init__(self, inner: BlockGenerator, steps: int) -> None:
        super().__init__(inner)
        self.draft_steps = steps

    def generate(self, call: BlockCall) -> Generated:
        return self.inner.generate(replace(call, stop=self.draft_steps))


def passes(emitted, who: str) -> list[int]:
    """Return the denoising passes of each `draft`, or of each block of the `target`."""
    costs = [getattr(shown.record, who) for shown in emitted]
    return [cost.denoising_passes if cost else 0 for cost in costs]


# --- routes without scores


@every_pair("policy, context, stride, step", POLICIES, CONTEXTS, (1, 2, 3, 9), (0, 1))
def test_stride_equals_the_planned_route(policy, context, stride, step):
    """Also where block 1 is not forced. Catches: a stride off by one, a first block that is handed over."""
    plan = {1: "ttttttt", 2: "tdtdtdt", 3: "tddtddt", 9: "tdddddd"}[stride]
    options = {"blocks": 7, "drafter_context": context}
    route = Route(Stride(stride, forced_blocks=0), handover=step)
    strided = run(replace(make_engine(policy), scorer=None), route, **options)
    planned = run(make_engine(policy), scripted(plan, handover=step), **options)
    assert torch.equal(latents_of(strided), latents_of(planned))
    assert torch.equal(frames_of(strided), frames_of(planned))
    assert [shown.record.author[0] for shown in strided] == [*plan]
    assert [shown.record.handover for shown in strided] == [0, *(step * (letter == "t") for letter in plan[1:])]


@pytest.mark.parametrize(
    "route",
    [
        Route(Gate(-100.0, forced_blocks=3)),
        Route(First(3)),
        Route(Stride(4, forced_blocks=3)),
        scripted("aaaaa", forced_blocks=3),
        scripted("ddddd", forced_blocks=3),
    ],
    ids=str,
)
def test_forced_blocks_hold_for_every_policy(route):
    """Catches: a policy that is asked before the forced blocks are."""
    reasons = [shown.record.decision.reason for shown in run(make_engine(), route, blocks=5)]
    assert reasons[:3] == [Reason.FORCED] * 3
    assert Reason.FORCED not in reasons[3:]


# --- handover: the drafter begins, the target finishes


@every_pair("policy, framewise, step, index", POLICIES, (False, True), (1, 2, 3), (0, 1))
def test_model_continues_its_own_steps(policy, framewise, step, index):
    """Held to the same block made at once. Catches: noise of another slot, a step repeated or left out."""
    drafter = (make_framewise if framewise else make_engine)(policy, **FOUR).drafter
    emitted = run(make_engine(policy, **FOUR), scripted("t"), blocks=1)
    history = emitted[0].history if index else History(horizon=3)
    call = BlockCall(history, Span(index, 3 * index, 3), make_noise(), PROMPT)
    whole = drafter.generate(call)
    stopped = drafter.generate(replace(call, stop=step))
    assert torch.equal(stopped.predictions[-1][:, :, -1], whole.predictions[step - 1][:, :, -1])
    finished = drafter.generate(replace(call, handed_over=whole.predictions[:step]))
    assert torch.equal(finished.latents, whole.latents)


@every_pair("policy, context, step", POLICIES, CONTEXTS, (1, 2, 3))
def test_handover_moves_passes_from_target_to_drafter(policy, context, step):
    """Catches: a draft made whole, decoded or scored for a block that is not the drafter's anyway."""
    engine = replace(make_engine(policy, **FOUR), scorer=None)
    emitted = run(engine, Route(First(4), handover=step), blocks=6, drafter_context=context)
    assert passes(emitted, "target") == [4, 4 - step, 4 - step, 4 - step, 0, 0]
    assert [shown.record.handover for shown in emitted] == [0, step, step, step, 0, 0]
    if context == "committed":
        assert passes(emitted, "draft") == [0, step, step, step, 4, 4]
        assert engine.codec.decodes == 6
    else:  # its own video needs its own blocks whole, and decoded where it looks at pixels
        assert sum(passes(emitted, "draft")) == 6 * 4 + 3 * step
        assert engine.codec.decodes == (6 + 5 if policy == "recompute" else 6)


class NoNumbers(BrightScorer):
    """A scorer whose scores are no numbers."""

    def score(self, frames, prompt):
        return super().score(frames, prompt) * torch.nan


MADE_BY_THE_TARGET = {
    "below tau": (Script(Route(Gate(math.inf))), BrightScorer),
    "below tau, in a cascade": (Script(Route(Gate(math.inf, by=WorstFrame(0.1)))), BrightScorer),
    "no number": (Script(Route(Gate(-math.inf))), NoNumbers),
    "bail-out": (Script(Route(Gate(math.inf, bail_out=1))), BrightScorer),
    "a direction": (Script(Route(Gate(-math.inf)), ".rrrrr"), BrightScorer),
    "a kept draft without a number": (Script(Route(), ".aaaaa"), NoNumbers),
    "forced blocks": (Script(Route(First(6))), BrightScorer),
    "a stride": (Script(Route(Stride(1, forced_blocks=0))), BrightScorer),
    "a router": (Script(scripted("rrrrrr")), BrightScorer),
}


@in_turn("way, context, policy, step", tuple(MADE_BY_THE_TARGET), CONTEXTS, POLICIES, (1, 2, 3))
def test_every_rejection_hands_over(way, context, policy, step):
    """All but the direction `t`. Catches: a reason for which the target begins from noise."""
    script, scorer = MADE_BY_THE_TARGET[way]
    engine = replace(make_engine(policy, **FOUR), scorer=scorer())
    handing_over = Script(replace(script.route, handover=step), script.directions)
    emitted = run(engine, handing_over, blocks=5, drafter_context=context)
    target_only = Route(TargetOnly(), handover=step)
    expected = run(make_engine(policy, **FOUR), target_only, blocks=5, drafter_context=context)
    assert torch.equal(latents_of(emitted), latents_of(expected))
    assert [shown.record.handover for shown in emitted] == [0, step, step, step, step]


@pytest.mark.parametrize("policy", POLICIES)
def test_first_block_is_never_handed_over(policy):
    """Catches: the clip's first block handed over, which ruins it (published)."""
    usual = run(make_engine(policy, **FOUR), Route(First(3), handover=2), blocks=3)
    assert passes(usual, "target") == [4, 2, 2]
    rejected = run(make_engine(policy, **FOUR), scripted("rr", handover=2, forced_blocks=0), blocks=2)
    assert passes(rejected, "target") == [4, 2]


def test_bail_out_hands_over():
    """Catches: drafts made whole, to be scored, although the bail-out has given up on them."""
    emitted = run(make_engine(**FOUR), scripted("rrraa", bail_out=2, handover=1), blocks=5)
    assert [shown.record.decision.reason for shown in emitted[3:]] == [Reason.BAILED_OUT] * 2
    assert passes(emitted, "target") == [4, 3, 3, 3, 3]
    assert passes(emitted, "draft") == [0, 4, 4, 1, 1]


# --- what does not fit


def test_handover_of_all_steps_is_refused():
    """Where a block is handed over; block 0 never is."""
    with pytest.raises(BadInput, match="of 4 denoising steps"):
        run(make_engine(**FOUR), Route(First(2), handover=4))
    run(make_engine(**FOUR), Route(First(1), handover=9), blocks=3)


def test_handover_between_two_schedules_is_refused():
    engine = replace(make_engine(), drafter=make_engine(schedule="1000,500").drafter)
    with pytest.raises(BadInput, match="a handover needs one schedule"):
        run(engine, Route(First(2), handover=1))


def test_handover_without_a_drafter_is_refused():
    """But of a single block, which is whole."""
    route = Route(TargetOnly(), handover=1)
    with pytest.raises(BadInput, match="a handover needs a drafter"):
        check_available(route, planned_blocks(plan_spans(3, 3)), Roles({"target"}))
    check_available(route, planned_blocks(plan_spans(1, 3)), Roles({"target"}))


# --- drafts that stop early


DRAFTER_ONLY = Route(First(0))
KEEP_ALL = Route(Gate(-100.0, forced_blocks=0))


def short_drafts(policy: str = "recompute", draft_steps: int = 3):
    return make_engine(policy, draft_steps=draft_steps, **FOUR)


@every_pair("policy, context, steps", POLICIES, CONTEXTS, (1, 2, 3))
def test_keeping_short_drafts_is_draft_only(policy, context, steps):
    """Held to whole drafts that are cut after the same step. Catches: another noise, a history of whole drafts."""
    options = {"blocks": 5, "drafter_context": context}
    kept = run(short_drafts(policy, steps), KEEP_ALL, **options)
    whole = make_engine(policy, **FOUR)
    cut = run(replace(whole, drafter=CutDrafter(whole.drafter, steps)), DRAFTER_ONLY, **options)
    assert torch.equal(latents_of(kept), latents_of(cut))
    assert torch.equal(frames_of(kept), frames_of(cut))
    assert passes(kept, "draft") == [steps] * 5


def test_handover_of_all_draft_steps_continues_the_draft():
    """Catches: a draft of two steps of which only one is handed over."""
    first, second = run(short_drafts(draft_steps=2), scripted("rr", handover=2), blocks=2)
    draft = second.draft
    assert torch.equal(draft.predictions[1], draft.latents)
    call = BlockCall(first.history, second.block.span, make_noise(), PROMPT, handed_over=draft.predictions)
    finished = make_engine(**FOUR).target.generate(call)
    assert torch.equal(finished.latents, second.block.latents)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_frame_by_frame_every_sub_block_stops_early(policy, context):
    """In scored drafts and in those made only to be handed over. Catches: only the last one is cut."""
    scored, certain = (
        run(
            replace(make_framewise(policy, draft_steps=2, **FOUR), target=make_engine(policy, **FOUR).target),
            scripted(letters, handover=2),
            blocks=5,
            drafter_context=context,
        )
        for letters in ("rrara", "ttdtd")
    )
    assert torch.equal(latents_of(scored), latents_of(certain))
    kept = [shown.record.draft for shown in scored if shown.record.decision.accepted]
    assert [draft.denoising_passes for draft in kept] == [6, 6], "three sub-blocks of two steps"


@pytest.mark.parametrize("policy", POLICIES)
def test_control_reaches_every_step_of_short_drafts(policy):
    """Catches: a control that is left out of a draft that stops early."""
    whole = engine_of(policy)
    cut = replace(whole, drafter=CutDrafter(whole.drafter, 2))
    short = guided_latents(engine_of(policy, draft_steps=2), DRAFTER_ONLY, controlled(CONTROL))
    uncontrolled = guided_latents(engine_of(policy, draft_steps=2), DRAFTER_ONLY, {})
    assert torch.equal(short, guided_latents(cut, DRAFTER_ONLY, controlled(CONTROL)))
    assert not torch.equal(short, uncontrolled)


@pytest.mark.parametrize("policy", POLICIES)
def test_control_reaches_handed_over_short_drafts(policy):
    """Catches: a control that is left out of the blocks a short draft is handed over to."""
    scored, certain = (
        guided_latents(engine_of(policy, draft_steps=2), scripted(letters, handover=2), controlled(CONTROL))
        for letters in ("rrar", "ttdt")
    )
    uncontrolled = guided_latents(engine_of(policy, draft_steps=2), scripted("rrar", handover=2), {})
    assert torch.equal(scored, certain)
    assert not torch.equal(scored, uncontrolled)


def test_restyling_leaves_fewer_steps_to_a_short_draft():
    emitted = list(run_of(engine_of(draft_steps=2), DRAFTER_ONLY, restyled(Strength(skip=1))).blocks())
    assert passes(emitted, "draft") == [1] * BLOCKS


def test_restyling_must_leave_the_draft_a_step():
    """Where there is a draft: the target alone goes on from there."""
    guide = restyled(Strength(skip=2))
    with pytest.raises(BadInput, match="replaces 2 steps"):
        run_of(engine_of(draft_steps=2), DRAFTER_ONLY, guide)
    guided_latents(engine_of(draft_steps=2), Route(TargetOnly()), guide)


class LastOnly:
    """A drafter that returns its last prediction alone."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def generate(self, call):
        generated = self.inner.generate(call)
        return replace(generated, predictions=generated.predictions[-1:])


@pytest.mark.parametrize("letters", ["rrr", "ttt"])
def test_fewer_predictions_than_are_handed_over_are_refused(letters):
    """Scored or not. Catches: a handover of one step that the record calls two."""
    whole = make_engine(**FOUR)
    engine = replace(whole, drafter=LastOnly(whole.drafter))
    with pytest.raises(BadInput, match="returned 1 prediction, and 2 are handed over"):
        run(engine, scripted(letters, handover=2), blocks=3)
    assert len(run(engine, scripted(letters, handover=1), blocks=3)) == 3


def test_handover_longer_than_the_draft_is_refused():
    """Where a block may be handed over."""
    with pytest.raises(BadInput, match="handover is 3, but drafts stop after 2"):
        run(short_drafts(draft_steps=2), scripted("rara", handover=3), blocks=4)
    run(short_drafts(draft_steps=2), scripted("dddd", handover=3, forced_blocks=0), blocks=4)
