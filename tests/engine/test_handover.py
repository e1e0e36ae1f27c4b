"""The first m blocks, blocks the drafter begins and the target finishes, drafts that stop early: bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from guided import CONTROL, controlled, engine_of, restyled, run_of
from guided import made as guided

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
    """Stops after so many steps, as if everything after them were handed over."""

    def __init__(self, inner: BlockGenerator, steps: int) -> None:
        super().__init__(inner)
        self.draft_steps = steps

    def generate(self, call: BlockCall) -> Generated:
        return self.inner.generate(replace(call, stop=self.draft_steps))


def first(m: int, **options: object) -> Route:
    return Route(First(m), **options)


def passes(emitted, who: str) -> list[int]:
    works = [getattr(e.record, who) for e in emitted]
    return [work.denoising_passes if work else 0 for work in works]


# --- the first m blocks


@every_pair("policy, context, stride, step", POLICIES, CONTEXTS, (1, 2, 3, 9), (0, 1))
def test_a_stride_is_the_planned_route_bit_for_bit(policy, context, stride, step):
    """Also where block 1 is not forced. Catches: a stride off by one, a first block that is handed over."""
    plan = {1: "ttttttt", 2: "tdtdtdt", 3: "tddtddt", 9: "tdddddd"}[stride]
    options = {"blocks": 7, "drafter_context": context}
    router = Route(Stride(stride, forced_blocks=0), handover=step)
    made = run(replace(make_engine(policy), scorer=None), router, **options)
    planned = run(make_engine(policy), scripted(plan, handover=step), **options)
    assert torch.equal(latents_of(made), latents_of(planned))
    assert torch.equal(frames_of(made), frames_of(planned))
    assert ["td"[e.record.decision.accepted] for e in made] == [*plan]
    assert [e.record.handover for e in made] == [0, *(step if letter == "t" else 0 for letter in plan[1:])]


def test_forced_blocks_hold_for_every_policy():
    """Catches: a policy that is asked before the forced blocks are."""
    policies = (Gate(-100.0, forced_blocks=3), First(3), Stride(4, forced_blocks=3))
    for router in (*map(Route, policies), scripted("aaaaa", forced_blocks=3), scripted("ddddd", forced_blocks=3)):
        reasons = [e.record.decision.reason for e in run(make_engine(), router, blocks=5)]
        assert reasons[:3] == [Reason.FORCED] * 3, router
        assert Reason.FORCED not in reasons[3:], router


# --- handover: the drafter begins, the target finishes


@every_pair("policy, context, step, draft_steps", POLICIES, CONTEXTS, (1, 2, 3), (None, 3))
def test_a_handover_is_bit_for_bit_a_repair_with_the_same_decisions(policy, context, step, draft_steps):
    """Catches: another noise slot, another history, or a step too many or too few of either model."""
    models = {**FOUR, "draft_steps": draft_steps}
    options = {"blocks": 6, "drafter_context": context}
    handed = run(make_engine(policy, **models), scripted("ttdtdt", handover=step), **options)
    repaired = run(make_engine(policy, **models), scripted("rrarar", handover=step), **options)
    assert torch.equal(latents_of(handed), latents_of(repaired))
    assert torch.equal(frames_of(handed), frames_of(repaired))
    whole = run(make_engine(policy, **models), scripted("ttdtdt"), **options)
    assert not torch.equal(latents_of(handed), latents_of(whole))


@every_pair("policy, framewise, step, index", POLICIES, (False, True), (1, 2, 3), (0, 1))
def test_a_model_goes_on_from_its_own_steps_as_it_did(policy, framewise, step, index):
    """Held to the same block made at once. Catches: noise of another slot, a step repeated or left out."""
    make = make_framewise if framewise else make_engine
    parts = make(policy, **FOUR)
    span = Span(index, 3 * index, 3)
    target = make_engine(policy, **FOUR)
    history = run(target, scripted("t"), blocks=1)[0].history if index else History(horizon=target.horizon)
    call = BlockCall(history, span, make_noise(), PROMPT)
    whole = parts.drafter.generate(call)
    begun = parts.drafter.generate(replace(call, stop=step))
    assert torch.equal(begun.predictions[-1][:, :, -1], whole.predictions[step - 1][:, :, -1])
    finished = parts.drafter.generate(replace(call, handed_over=whole.predictions[:step]))
    assert torch.equal(finished.latents, whole.latents)


@every_pair("policy, context, step", POLICIES, CONTEXTS, (1, 2, 3))
def test_a_handover_of_k_saves_k_target_passes_a_block_and_costs_k_of_the_drafter(policy, context, step):
    """Catches: a draft made whole, decoded or scored for a block that is not the drafter's anyway."""
    engine = replace(make_engine(policy, **FOUR), scorer=None)
    emitted = run(engine, first(4, handover=step), blocks=6, drafter_context=context)
    assert passes(emitted, "target") == [4, 4 - step, 4 - step, 4 - step, 0, 0]
    assert [e.record.handover for e in emitted] == [0, step, step, step, 0, 0]
    assert engine.codec.decodes == (6 if context == "committed" else 6 + own_decodes(policy))
    if context == "committed":
        assert passes(emitted, "draft") == [0, step, step, step, 4, 4]
    else:  # its own video needs its own blocks whole
        assert sum(passes(emitted, "draft")) == 6 * 4 + 3 * step


class NoNumbers(BrightScorer):
    """A scorer whose scores are no numbers."""

    def score(self, frames, prompt):
        return super().score(frames, prompt) * torch.nan


MADE_BY_THE_TARGET = {
    "below tau": (Route(Gate(math.inf)), BrightScorer),
    "below tau, in a cascade": (Route(Gate(math.inf, by=WorstFrame(0.1))), BrightScorer),
    "no number": (Route(Gate(-math.inf)), NoNumbers),
    "bail-out": (Route(Gate(math.inf, bail_out=1)), BrightScorer),
    "a direction": (Script(Route(Gate(-math.inf)), ".rrrrr"), BrightScorer),
    "a kept draft without a number": (Script(Route(), ".aaaaa"), NoNumbers),
    "forced blocks": (first(6), BrightScorer),
    "a stride": (Route(Stride(1, forced_blocks=0)), BrightScorer),
    "a router": (scripted("rrrrrr"), BrightScorer),
}


@in_turn("way, context, policy, step", tuple(MADE_BY_THE_TARGET), CONTEXTS, POLICIES, (1, 2, 3))
def test_whatever_gives_a_block_to_the_target_hands_over(way, context, policy, step):
    """All but the direction `t`. Catches: a reason for which the target begins from noise."""
    route, scorer = MADE_BY_THE_TARGET[way]
    parts = replace(make_engine(policy, **FOUR), scorer=scorer())
    script = route if isinstance(route, Script) else Script(route)
    handing = Script(replace(script.route, handover=step), script.directions)
    emitted = run(parts, handing, blocks=5, drafter_context=context)
    target_only = Route(TargetOnly(), handover=step)
    expected = run(make_engine(policy, **FOUR), target_only, blocks=5, drafter_context=context)
    assert torch.equal(latents_of(emitted), latents_of(expected))
    assert [shown.record.handover for shown in emitted] == [0, step, step, step, step]


def own_decodes(policy: str) -> int:
    """With its own context, a drafter that looks at pixels has its own drafts decoded before it continues."""
    return 5 if policy == "recompute" else 0


@pytest.mark.parametrize("policy", POLICIES)
def test_block_0_stays_whole(policy):
    """Catches: the clip's first block handed over, which ruins it (published)."""
    usual = run(make_engine(policy, **FOUR), first(3, handover=2), blocks=3)
    assert passes(usual, "target") == [4, 2, 2]
    rejected = run(make_engine(policy, **FOUR), scripted("rr", handover=2, forced_blocks=0), blocks=2)
    assert passes(rejected, "target") == [4, 2]


def test_a_bail_out_hands_over_the_blocks_it_gives_to_the_target():
    emitted = run(make_engine(**FOUR), scripted("rrraa", bail_out=2, handover=1), blocks=5)
    assert [e.record.decision.reason for e in emitted[3:]] == [Reason.BAILED_OUT] * 2
    assert passes(emitted, "target") == [4, 3, 3, 3, 3]
    assert passes(emitted, "draft") == [0, 4, 4, 1, 1]


def test_a_handover_needs_both_models_and_one_schedule():
    with pytest.raises(BadInput, match="of 4 denoising steps; leave"):
        run(make_engine(**FOUR), first(2, handover=4))
    engine = make_engine()
    run(engine, first(1, handover=9), blocks=3)  # block 0 is whole, so nothing is handed over
    other = replace(engine, drafter=make_engine(schedule="1000,500").drafter)
    with pytest.raises(BadInput, match="a handover needs one schedule"):
        run(other, first(2, handover=1))
    alone = Roles({"target"})
    route = Route(TargetOnly(), handover=1)
    with pytest.raises(BadInput, match="a handover needs a drafter; load one, or set handover to 0"):
        check_available(route, planned_blocks(plan_spans(3, 3)), alone)
    check_available(route, planned_blocks(plan_spans(1, 3)), alone)


DRAFTS = Route(First(0))
ALL_KEPT = Route(Gate(-100.0, forced_blocks=0))


def engine(policy: str = "recompute", draft_steps: int | None = 3):
    return make_engine(policy, draft_steps=draft_steps, **FOUR)


@every_pair("policy, context, steps", POLICIES, CONTEXTS, (1, 2, 3))
def test_keeping_all_is_the_drafter_alone_with_so_many_steps(policy, context, steps):
    """Held to whole drafts that are cut after the same step. Catches: another noise, a history of whole drafts."""
    options = {"blocks": 5, "drafter_context": context}
    made = run(engine(policy, steps), ALL_KEPT, **options)
    assert torch.equal(latents_of(made), latents_of(run(engine(policy, steps), DRAFTS, **options)))
    whole = engine(policy, None)
    cut = run(replace(whole, drafter=CutDrafter(whole.drafter, steps)), DRAFTS, **options)
    assert torch.equal(latents_of(made), latents_of(cut))
    assert torch.equal(frames_of(made), frames_of(cut))
    assert {e.record.draft.denoising_passes for e in made} == {steps}


def test_a_handover_of_all_draft_steps_goes_on_from_the_draft_itself():
    scored = run(engine(draft_steps=2), scripted("rr", handover=2), blocks=2)[1]
    assert torch.equal(scored.draft.predictions[1], scored.draft.latents)
    alone = engine(draft_steps=None)
    span, history = Span(1, 3, 3), run(alone, scripted("t"), blocks=1)[0].history
    call = BlockCall(history, span, make_noise(), PROMPT, handed_over=scored.draft.predictions)
    assert torch.equal(alone.target.generate(call).latents, scored.block.latents)


@every_pair("policy, context", POLICIES, CONTEXTS)
def test_frame_by_frame_every_sub_block_stops_early(policy, context):
    """In scored drafts and in those made only to be handed over. Catches: only the last one is cut."""
    made = []
    for letters in ("rrara", "ttdtd"):
        small = make_framewise(policy, draft_steps=2, **FOUR)
        parts = replace(small, target=engine(policy).target)
        made.append(run(parts, scripted(letters, handover=2), blocks=5, drafter_context=context))
    assert torch.equal(*map(latents_of, made))
    kept = [e.record.draft.denoising_passes for e in made[0] if e.record.decision.accepted]
    assert kept == [6, 6], "three sub-blocks of two steps"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_control_reaches_a_short_draft_in_every_step_it_makes(policy):
    """Catches: a control that is left out of a draft that stops early, or of the blocks it is handed over to."""
    guide = controlled(CONTROL)
    short = engine_of(policy, draft_steps=2)
    whole = engine_of(policy)
    alone = guided(short, DRAFTS, guide)
    cut = guided(replace(whole, drafter=CutDrafter(whole.drafter, 2)), DRAFTS, guide)
    assert torch.equal(alone, cut)
    assert not torch.equal(alone, guided(engine_of(policy, draft_steps=2), DRAFTS, {}))
    scored, certain = (
        guided(engine_of(policy, draft_steps=2), scripted(letters, handover=2), guide)
        for letters in ("rrar", "ttdt")
    )
    assert torch.equal(scored, certain)
    uncontrolled = guided(engine_of(policy, draft_steps=2), scripted("rrar", handover=2), {})
    assert not torch.equal(scored, uncontrolled)


def test_a_restyled_block_must_leave_the_draft_a_step():
    guide = restyled(Strength(skip=1))
    made = [e.record for e in run_of(engine_of(draft_steps=2), DRAFTS, guide).blocks()]
    assert {record.draft.denoising_passes for record in made} == {1}
    with pytest.raises(BadInput, match="the clip replaces 2 steps, and drafts stop after 2"):
        run_of(engine_of(draft_steps=2), DRAFTS, restyled(Strength(skip=2)))
    target_only = Route(TargetOnly())
    guided(engine_of(draft_steps=2), target_only, restyled(Strength(skip=2)))


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
    whole = engine(draft_steps=None)
    parts = replace(whole, drafter=LastOnly(whole.drafter))
    with pytest.raises(BadInput, match="the drafter returned 1 prediction, and 2 are handed over; return one for"):
        run(parts, scripted(letters, handover=2), blocks=3)
    assert len(run(parts, scripted(letters, handover=1), blocks=3)) == 3


def test_a_handover_of_more_steps_than_a_draft_has_is_refused():
    with pytest.raises(BadInput, match="handover is 3, but drafts stop after 2 steps"):
        run(engine(draft_steps=2), scripted("rara", handover=3), blocks=4)
    run(engine(draft_steps=2), scripted("dddd", handover=3, forced_blocks=0), blocks=4)
