"""Scoring a few frames first: what is scored, what is decided, and that no other video is made of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from thinned import every_pair
from tiny import CONTEXTS, POLICIES, frames_of, latents_of, make_engine, run, scripted

from research.routers import PlannedRouter
from sdvg_core.engine.plan import NOT_CASCADED, plan_blocks
from sdvg_core.engine.router import Decision, Reason, RouterConfig, decide, router_preset, score_and_decide, stages
from sdvg_core.errors import BadInput

TAU = -0.7
EXACT = RouterConfig(tau=TAU, cascade=math.inf)
QUICK = RouterConfig(tau=TAU, cascade=0.2)
FIRST = (0, 4, 7, 11)


def asked(config: RouterConfig, scores: list[float]) -> tuple[Decision, list[list[int]]]:
    """Decide on a draft with these scores; return also which frames each call of the scorer was asked for."""
    calls: list[list[int]] = []

    def score(frames: tuple[int, ...]) -> torch.Tensor:
        calls.append([*frames])
        return torch.tensor([scores[frame] for frame in frames])

    return score_and_decide(config, 1, len(scores), score), calls


def frame_scores(first: float, others: float) -> list[float]:
    return [first if frame in FIRST else others for frame in range(12)]


def test_the_frames_scored_first_are_spread_over_the_block():
    """Catches: the first four in a row, and a short draft of which some frames are never looked at."""
    assert stages(QUICK, 1, 12) == (FIRST, (1, 2, 3, 5, 6, 8, 9, 10))
    assert stages(QUICK, 1, 9)[0] == (0, 3, 5, 8)
    assert [stages(QUICK, 1, count) for count in (1, 4)] == [((0,),), ((0, 1, 2, 3),)]
    assert asked(QUICK, frame_scores(5.0, 5.0))[1] == [[*FIRST]]


def test_with_an_infinite_margin_the_same_drafts_are_kept_as_without_a_cascade():
    """Two hundred drafts, NaN and infinities among them. Catches: a rejection by a frame that is not the worst."""
    source = random.Random(7)
    specials = (math.nan, math.inf, -math.inf, TAU, TAU + 0.2)
    kept = []
    for _ in range(200):
        spread = source.choice((0.05, 0.5, 2.0))
        scores = [source.gauss(TAU + 2 * spread, spread) for _ in range(source.choice((9, 12)))]
        if source.random() < 0.3:
            scores[source.randrange(len(scores))] = source.choice(specials)
        whole = decide(RouterConfig(tau=TAU), 1, torch.tensor(scores))
        decision, _ = asked(EXACT, scores)
        assert decision.accepted == whole.accepted, scores
        if decision.accepted:
            assert decision == whole, "a draft that is kept was scored whole"
        kept.append(decision.accepted)
    assert 40 < sum(kept) < 160


def test_first_frames_below_tau_reject_and_the_others_are_not_scored():
    """Catches: a draft that is kept on a low score, and one that is scored whole to be rejected."""
    decision, calls = asked(QUICK, frame_scores(-0.8, 5.0))
    assert (decision.accepted, decision.reason, calls) == (False, Reason.FELL_SHORT, [[*FIRST]])
    assert decision.score == pytest.approx(-0.8)
    assert [frame for frame, score in enumerate(decision.frame_scores) if score is not None] == [*FIRST]


def test_first_frames_far_enough_above_tau_keep_and_a_nan_among_the_others_is_not_seen():
    decision, calls = asked(QUICK, frame_scores(-0.49, math.nan))
    assert (decision.accepted, decision.reason, calls) == (True, Reason.REACHED, [[*FIRST]])
    assert len(decision.known_scores) == 4
    assert decision.worst_frame == 0


def test_in_between_the_other_frames_are_scored_in_one_call():
    """Catches: a margin of the wrong sign, and scores given to the wrong frames."""
    for others, accepted in ((-0.6, True), (-0.71, False), (math.nan, False)):
        decision, calls = asked(QUICK, frame_scores(-0.6, others))
        assert (decision.accepted, [len(call) for call in calls]) == (accepted, [4, 8])
        assert decision.frame_scores[4] == pytest.approx(-0.6)
        assert decision.frame_scores[1] == pytest.approx(others, nan_ok=True)
    low = frame_scores(-0.6, -0.6)
    low[5] = -0.9
    assert asked(QUICK, low)[0].worst_frame == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_first_frames_that_are_not_finite_reject_as_such(bad):
    scores = frame_scores(5.0, 5.0)
    scores[7] = bad
    decision, calls = asked(QUICK, scores)
    assert (decision.reason, decision.worst_frame, len(calls)) == (Reason.NOT_FINITE, 7, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": "mean"},
        {"aggregation": "quantile"},
        {"part": PlannedRouter("a" * 9)},
        {"directions": ".a"},
        {"directions": ".r"},
    ],
    ids=str,
)
def test_where_the_worst_frame_alone_does_not_decide_all_frames_are_scored_and_a_note_says_so(changes):
    config = replace(QUICK, **changes)
    decision, calls = asked(config, frame_scores(5.0, 5.0))
    assert (len(decision.known_scores), len(calls)) == (12, 1)
    assert (decision.reason is Reason.REACHED) == ("aggregation" in changes)
    sizes = {"drafter": 3, "target": 3}
    letters = config.directions.ljust(4, ".") if config.directions else ""
    plan = plan_blocks(replace(config, directions=""), blocks=4, block_frames=sizes, directions=letters)
    assert NOT_CASCADED in plan.notes
    assert NOT_CASCADED not in plan_blocks(QUICK, blocks=4, block_frames=sizes).notes


@pytest.mark.parametrize("margin", [-0.1, math.nan])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(BadInput, match=r"cascade is .*; give 0 or more"):
        RouterConfig(cascade=margin)


def test_an_infinite_margin_is_a_number_in_the_report():
    """Catches: null, which would be read back as no cascade."""
    assert RouterConfig(**{**EXACT.settings, "directions": ""}).cascade == 1e9
    assert QUICK.settings["cascade"] == 0.2


@every_pair("policy, context, margin", POLICIES, CONTEXTS, (0.0, 0.1, math.inf))
def test_hybrid_is_the_planned_route_with_the_same_decisions_bit_for_bit(policy, context, margin):
    """Catches: a draft that is decoded or handed over otherwise because only some of its frames were scored."""
    options = {"blocks": 7, "drafter_context": context}
    hybrid = replace(router_preset("hybrid"), tau=-0.45, cascade=margin)
    made = run(make_engine(policy, schedule="four-step"), hybrid, **options)
    letters = "".join("ra"[e.record.decision.accepted] for e in made)
    assert "a" in letters[1:]
    assert "r" in letters[1:]
    planned = run(make_engine(policy, schedule="four-step"), scripted(letters, handover=3), **options)
    assert torch.equal(latents_of(made), latents_of(planned))
    assert torch.equal(frames_of(made), frames_of(planned))
    assert [e.record.handover for e in made] == [0, *(3 * (letter == "r") for letter in letters[1:])]
    unscored = [e.record.decision.frame_scores.count(None) for e in made]
    assert any(count == 8 for count in unscored)
