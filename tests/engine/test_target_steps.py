"""Blocks that the target makes in fewer steps: which ones it makes, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from guided import engine_of, restyled, run_of
from small_runs import TinyRequest, assert_same_run, fresh_run, play

from sdvg_core.engine.inputs import BlockCall, Restyle
from sdvg_core.engine.outside import OutsidePart
from sdvg_core.engine.reuse import Store
from sdvg_core.engine.routing import PlannedBlock, steps_left_out
from sdvg_core.engine.types import Generated, Span
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import Strength
from sdvg_core.settings.route import First, Gate, Route, TargetOnly
from tests.support.thinned import every_pair
from tests.support.tiny import POLICIES, PROMPT, latents_of, make_engine, make_noise, run

FOUR = {"schedule": "four-step"}
SPAN = Span(1, 3, 3)
SOME = PlannedBlock(span=SPAN, place=1)
WHOLE = {
    "route's first": replace(SOME, place=0),
    "before the route": replace(SOME, place=-2),
    "direction t": replace(SOME, direction="t"),
}


def call_of(target) -> BlockCall:
    history = run(replace(target, drafter=None, scorer=None), Route(TargetOnly()), blocks=1)[0].history
    return BlockCall(history, SPAN, make_noise(), PROMPT)


# --- how many are left out


@pytest.mark.parametrize(
    "handover, skip, target_steps, left_out",
    [
        (0, 0, 0, 0),
        (0, 0, 1, 3),
        (0, 0, 3, 1),
        (0, 0, 4, 0),
        (2, 0, 1, 1),
        (2, 0, 2, 0),
        (0, 1, 1, 2),
        (2, 1, 1, 1),
        (1, 2, 1, 1),
        (3, 0, 4, 0),
    ],
)
def test_target_leaves_out_steps_beyond_its_limit(handover, skip, target_steps, left_out):
    """Of the four, those that a handover or a clip replaces are no longer the target's."""
    route = Route(TargetOnly(), handover=handover, target_steps=target_steps)
    block = replace(SOME, strength=Strength(skip=skip))
    assert steps_left_out(route, block, 4) == left_out


@pytest.mark.parametrize("block", WHOLE)
def test_some_blocks_are_made_whole(block):
    assert steps_left_out(Route(TargetOnly(), target_steps=1), WHOLE[block], 4) == 0


# --- which ones, and by which noise


@every_pair("policy, target_steps", POLICIES, (1, 2, 3))
def test_target_makes_first_and_last_steps(policy, target_steps):
    """Held to a model that is handed its own first prediction once for each step it made or left out."""
    target = make_engine(policy, **FOUR).target
    call = call_of(make_engine(policy, **FOUR))
    left_out = 4 - target_steps
    fewer = target.generate(replace(call, left_out=left_out))
    opening = target.generate(replace(call, stop=1)).predictions
    reference = opening[0]
    if target_steps > 1:
        reference = target.generate(replace(call, handed_over=opening * (1 + left_out))).latents
    assert torch.equal(fewer.latents, reference)
    assert fewer.cost.denoising_passes == target_steps
    assert not torch.equal(fewer.latents, target.generate(call).latents)


@every_pair("policy, counts", POLICIES, ((1, 1), (1, 2), (2, 1)))
def test_target_makes_last_steps_after_a_handover(policy, counts):
    """Catches: a first step made again, or the step right after the handover in place of the last."""
    handover, left_out = counts
    parts = make_engine(policy, **FOUR)
    call = call_of(make_engine(policy, **FOUR))
    begun = parts.drafter.generate(replace(call, stop=handover)).predictions
    fewer = parts.target.generate(replace(call, handed_over=begun, left_out=left_out))
    reference = parts.target.generate(replace(call, handed_over=(*begun, *begun[-1:] * left_out)))
    assert torch.equal(fewer.latents, reference.latents)


def test_target_makes_last_steps_of_a_restyled_block():
    """Catches: a restyled block that begins from noise."""
    target = make_engine(**FOUR).target
    call = call_of(make_engine(**FOUR))
    clip = target.generate(call).latents
    fewer = target.generate(replace(call, restyle=Restyle(1, latents=clip), left_out=2))
    reference = target.generate(replace(call, restyle=Restyle(3, latents=clip)))
    assert torch.equal(fewer.latents, reference.latents)


# --- in a run


@every_pair("policy, handover, target_steps", POLICIES, (0, 2), (1, 2, 3, 4))
def test_run_counts_passes_and_steps_left_out(policy, handover, target_steps):
    route = Route(First(3), handover=handover, target_steps=target_steps)
    blocks = run(make_engine(policy, **FOUR), route, blocks=5)
    records = [block.record for block in blocks]
    passes = [record.target.denoising_passes if record.target else 0 for record in records]
    left = max(4 - handover - target_steps, 0)
    assert passes == [4, 4 - handover - left, 4 - handover - left, 0, 0]
    assert [record.left_out for record in records] == [0, left, left, 0, 0]


@pytest.mark.parametrize("handover", [0, 1])
def test_limit_of_all_steps_changes_no_bit(handover):
    whole = Route(Gate(0.3), handover=handover)
    limited = replace(whole, target_steps=4 - handover)
    first, second = (latents_of(run(make_engine(**FOUR), route)) for route in (whole, limited))
    assert torch.equal(first, second)


def test_shorter_blocks_are_not_reused_as_whole_ones():
    """Catches: a key of the store without the steps left out. A limit of all steps is the same key."""
    store = Store()
    whole = TinyRequest(route=Route(TargetOnly()), schedule="four-step", blocks=4)
    shorter, equal = (replace(whole, route=replace(whole.route, target_steps=steps)) for steps in (2, 4))
    play(whole, store)
    video = play(shorter, store)
    assert video.reused == 1
    assert_same_run(video, fresh_run(shorter))
    assert play(equal, store).calls == []


def test_more_steps_than_the_target_makes_are_refused():
    with pytest.raises(BadInput, match="target_steps is 5, and the target makes 4 steps"):
        run(make_engine(**FOUR), Route(TargetOnly(), target_steps=5), blocks=2)


def test_restyling_by_number_makes_the_first_step():
    """A number lowers the schedule and replaces no step. Catches: a limit that leaves out the noisiest step."""
    route = Route(TargetOnly(), target_steps=2)
    parts = replace(engine_of(), drafter=None, scorer=None)
    records = [block.record for block in run_of(parts, route, restyled(Strength(share=0.6))).blocks()]
    assert [record.target.denoising_passes for record in records] == [4, 2, 2, 2]


class DeafTarget:
    """A model from outside that makes all its steps whatever it is asked."""

    timesteps = (1000.0, 900.0, 800.0, 625.0)

    def generate(self, call):
        noise = call.noise.draw(call.span, 0)
        return Generated((noise,) * 4)


def test_outside_target_that_leaves_out_nothing_is_refused():
    call = replace(call_of(make_engine(**FOUR)), left_out=2)
    with pytest.raises(BadInput, match=r"returned 4 predictions where 2 steps.*left_out"):
        OutsidePart("target", DeafTarget()).generate(call)
