"""Drafts that the target refines: each is the start of a restyle, and follows the drafts before it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from guided import control_clip, controlled, engine_of, restyled, run_of
from replayed import commit
from small_runs import TinyRequest, assert_same_run, fresh_run, play

from sdvg_core.engine.inputs import BlockCall, ControlClip, Restyle
from sdvg_core.engine.reuse import Store
from sdvg_core.engine.types import History
from sdvg_core.errors import BadInput, MissingModel
from sdvg_core.settings.decision import Reason
from sdvg_core.settings.request import STRENGTHS, Strength
from sdvg_core.settings.route import First, Refine, Route, TargetOnly
from tests.support.thinned import every_pair, in_turn
from tests.support.tiny import (
    LONG,
    POLICIES,
    PROMPT,
    Script,
    frames_of,
    latents_of,
    make_engine,
    make_framewise,
    make_noise,
    planned,
    run,
)

FOUR = {"schedule": "four-step"}
KINDS = (*POLICIES, *LONG, "framewise")
"""Kinds of context, and a drafter of smaller blocks."""
DRAFTS = Route(First(0))


def engine_with(kind: str, **options):
    """Return an engine of four steps with a kind of context."""
    if kind == "framewise":
        whole = make_engine(**FOUR, **options)
        return replace(make_framewise(**FOUR), target=whole.target, codec=whole.codec)
    return make_engine(kind, **FOUR, **options)


def refined_one_by_one(engine, drafts, strength: Strength, directions: str):
    """Make a refined video from its drafts by calls alone: no loop, no plan, no cache that a run filled."""
    history = History(horizon=3)
    for draft, letter in zip(drafts, directions, strict=True):
        block = draft.block
        if letter != "d":
            over = Restyle(strength.skip, latents=block.latents) if letter == "." else Restyle()
            call = BlockCall(history, block.span, make_noise(), PROMPT, restyle=over)
            block = replace(block, latents=engine.target.generate(call).latents)
        frames, _ = engine.codec.decode(torch.cat([*(b.latents for b in history.blocks), block.latents], dim=2))
        history = commit(history, block, frames)
    return history.latents(0, history.frames), frames


# --- the bits


@in_turn("kind, word", KINDS, tuple(STRENGTHS))
def test_refined_video_is_a_restyled_draft(kind, word):
    """Held to the video by the drafter alone, restyled from its latents by the target alone.

    Catches: another history, other noise, a step too many or too few, a first block that is made whole.
    """
    drafts = latents_of(run(engine_with(kind), DRAFTS, blocks=6))
    refined = run(engine_with(kind), Route(Refine(word)), blocks=6)
    clip = {"source": drafts, "strengths": [Strength(STRENGTHS[word])] * 6, "blocks": 6}
    restyle = [*planned(engine_with(kind), Route(TargetOnly()), **clip).blocks()]
    assert torch.equal(latents_of(refined), latents_of(restyle))
    assert torch.equal(frames_of(refined), frames_of(restyle))
    assert not torch.equal(latents_of(refined), drafts)


@pytest.mark.parametrize("cases", [6, pytest.param(200, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_directions_refine_the_same_drafts(kind, cases):
    """Catches: a kept draft other than the drafter's alone, after blocks that became something else."""
    for seed in range(cases):
        chance = random.Random(f"{kind} {seed}")
        word = chance.choice([*STRENGTHS])
        letters = "".join(chance.choices(".dt", weights=(3, 1, 1), k=5))
        drafts = run(engine_with(kind), DRAFTS, blocks=5)
        emitted = run(engine_with(kind), Script(Route(Refine(word)), letters), blocks=5)
        latents, frames = refined_one_by_one(engine_with(kind), drafts, Strength(STRENGTHS[word]), letters)
        assert torch.equal(latents_of(emitted), latents), letters
        assert torch.equal(frames_of(emitted), frames), letters


def test_draft_may_restyle_and_obey_controls():
    """Catches: a clip to restyle, or a control, that reaches only one of the two models."""
    options = {**restyled(Strength(skip=1)), **controlled(ControlClip(control_clip(77)))}
    drafts = latents_of([*run_of(engine_of(), DRAFTS, options).blocks()])
    refined = latents_of([*run_of(engine_of(), Route(Refine("medium")), options).blocks()])
    clip = {**options, **restyled(Strength(skip=2), source=drafts)}
    assert torch.equal(refined, latents_of([*run_of(engine_of(), Route(TargetOnly()), clip).blocks()]))


# --- what it costs, and what serves it


@every_pair("policy, word", POLICIES, tuple(STRENGTHS))
def test_every_block_counts_both_models_passes(policy, word):
    """Catches: a draft decoded for the video, a target that makes all its steps, a count without the draft."""
    engine = replace(make_engine(policy, **FOUR), scorer=None)
    records = [shown.record for shown in run(engine, Route(Refine(word)), blocks=5)]
    skipped = STRENGTHS[word]
    assert [record.draft.denoising_passes for record in records] == [4] * 5
    assert [record.target.denoising_passes for record in records] == [4 - skipped] * 5
    assert [record.refined for record in records] == [skipped] * 5
    assert [record.decodes for record in records] == [1] * 5
    assert {record.decision.reason for record in records} == {Reason.REFINED}
    # A context with pixels decodes the drafts before it too, apart from the video.
    assert engine.codec.decodes == (5 + 4 if policy == "recompute" else 5)


DIRECTED = TinyRequest(route=Route(Refine("medium")), schedule="four-step", blocks=5, directions=".d.t.")


@every_pair("policy, own_frames, handover, takes, hold", POLICIES, (3, 1), (0, 3), ("", "2:2,4:3"), (0.0, 0.4))
def test_earlier_drafts_are_not_made_again(policy, own_frames, handover, takes, hold):
    """A run by the drafter alone may keep predictions too, as a live one does.

    Catches: a draft in its own context that is looked up under another key.
    """
    refine = replace(DIRECTED, policy=policy, own_frames=own_frames, takes=takes, hold=hold)
    store = Store()
    play(replace(refine, route=Route(First(0), handover=handover), directions=""), store)
    finished = play(refine, store)
    assert finished.blocks_of("drafter") == []
    assert finished.blocks_of("target") == [0, 2, 3, 4]
    assert_same_run(finished, fresh_run(refine))


@pytest.mark.parametrize("changes", [{"takes": "3:2"}, {"directions": ".d..."}, {"route": Route(Refine("light"))}])
def test_other_wishes_make_only_what_differs(changes):
    """Catches: a key of a refined block without its draft or its strength."""
    store = Store()
    play(DIRECTED, store)
    other = replace(DIRECTED, **changes)
    made = play(other, store)
    assert_same_run(made, fresh_run(other))
    drafts = [2, 3, 4] if "takes" in changes else []
    assert made.blocks_of("drafter") == drafts
    first = 0 if "route" in changes else 2 if "takes" in changes else 3
    assert made.reused == first


# --- what is refused

SHORT = {"schedule": "1000,625"}


@pytest.mark.parametrize(
    ("policy", "options", "keyword"),
    [
        ({}, {"directions": "..a.."}, "block 3 is directed a"),
        ({}, {"directions": ".r..."}, "block 2 is directed r"),
        ({"handover": 2}, {}, "refine has no handover"),
        ({"target_steps": 1}, {}, "refine has no target_steps"),
    ],
)
def test_what_refining_lacks_is_refused(policy, options, keyword):
    with pytest.raises(BadInput, match=keyword):
        planned(make_engine(**FOUR), Route(Refine(), **policy), **{"blocks": 5, **options})


def test_strength_without_a_step_is_refused():
    """Catches: a draft shown as refined by no step. Where no block is refined, there's nothing to refuse."""
    with pytest.raises(BadInput, match=r"leaves out 2 steps.*target makes 2 of block 1"):
        run(make_engine(**SHORT), Route(Refine("medium")), blocks=2)
    assert len(run(make_engine(**SHORT), Script(Route(Refine("medium")), "td"), blocks=2)) == 2
    strong = run(make_engine(**SHORT), Route(Refine("strong")), blocks=2)
    assert [shown.record.target.denoising_passes for shown in strong] == [1, 1]


def test_held_colours_leave_the_first_steps():
    """The first block has four steps, the others two. Catches: a wrapped model that counts those of the others."""
    engine = make_engine(**SHORT, first_schedule="four-step")
    refined = planned(engine, Route(Refine("medium")), blocks=2, directions=".t", colour_hold=0.5)
    assert [shown.record.target.denoising_passes for shown in refined.blocks()] == [2, 2]


@pytest.mark.parametrize(("missing", "letters"), [("drafter", "ttt"), ("target", "ddd")])
def test_directions_may_spare_a_model(missing, letters):
    engine = replace(make_engine(**FOUR), **{missing: None, "scorer": None})
    alone = planned(engine, Route(Refine()), blocks=3, directions=letters)
    assert len([*alone.blocks()]) == 3
    with pytest.raises(MissingModel, match=f"route refine needs a {missing}"):
        planned(engine, Route(Refine()), blocks=3)
