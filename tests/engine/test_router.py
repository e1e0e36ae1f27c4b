"""Routing: unequal scores, a score exactly at tau, every policy and modifier, and scoring a few frames first."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch

from sdvg_core.engine.routing import PlannedBlock, evenly_spaced, score_and_decide
from sdvg_core.engine.types import Span
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.fields import as_json, float32, from_json
from sdvg_core.settings.route import (
    Custom,
    First,
    Gate,
    Mean,
    Quantile,
    Route,
    Stride,
    TargetOnly,
    WorstFrame,
    route_preset,
)
from tests.support.routers import PlannedRouter
from tests.support.thinned import every_pair
from tests.support.tiny import CONTEXTS, POLICIES, frames_of, latents_of, make_engine, run, scripted


def scores(*values: float) -> tuple[float, ...]:
    return tuple(map(float32, values))


def test_the_worst_frame_decides_not_the_mean():
    """Catches: mean instead of worst frame. The mean is 0.5, the worst frame -0.8."""
    unequal = scores(1.3, 1.0, -0.8)
    assert Gate(-0.7).decide(1, unequal).reason is Reason.FELL_SHORT
    kept = Gate(-0.7, Mean()).decide(1, unequal)
    assert (kept.accepted, kept.reason) == (True, Reason.REACHED)


def test_a_score_exactly_at_tau_is_kept():
    """Catches: `>` instead of `>=`; and comparing a float32 score with a float64 tau."""
    for tau in (-0.7, 0.7, 0.1, -2.5, 0.0):
        assert Gate(tau).decide(1, scores(tau, 5.0)).accepted
        below = torch.nextafter(torch.tensor(tau, dtype=torch.float32), torch.tensor(-10.0)).item()
        assert not Gate(tau).decide(1, (below, 5.0)).accepted


def test_aggregations():
    values = scores(0.0, 1.0, 2.0, 3.0, 10.0)
    assert WorstFrame().aggregate(values) == 0.0
    assert Mean().aggregate(values) == pytest.approx(3.2)
    assert Quantile(0.5).aggregate(values) == 2.0
    assert Quantile(0.125).aggregate(values) == 0.5


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.37, 0.5, 1.0])
def test_mean_and_quantile_agree_with_torch(quantile):
    """Catches: another way to interpolate, and a result that is not rounded to float32."""
    source = random.Random(3)
    for count in (1, 4, 9, 12):
        drafted = scores(*(source.gauss(0, 2) for _ in range(count)))
        tensor = torch.tensor(drafted, dtype=torch.float32)
        mean = Mean().aggregate(drafted)
        ranked = Quantile(quantile).aggregate(drafted)
        assert [mean, ranked] == pytest.approx(
            [float(tensor.mean()), float(tensor.quantile(quantile))], rel=4e-7, abs=4e-7
        )
        assert [mean, ranked] == [float32(mean), float32(ranked)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "policy",
    [*(Gate(-math.inf, by) for by in (WorstFrame(), Mean(), Quantile())), Custom(PlannedRouter("a" * 9))],
    ids=str,
)
def test_a_score_that_is_no_number_rejects_with_its_own_reason(bad, policy):
    decision = policy.decide(2, scores(1.0, bad, 2.0))
    assert (decision.accepted, decision.reason, decision.worst_frame) == (False, Reason.NOT_FINITE, 1)
    assert decision.frame_scores[0] == 1.0


def test_bail_out_counts_rejections_in_a_row_and_then_stays():
    gate = Gate(bail_out=2)
    kept = Decision(accepted=True, reason=Reason.REACHED)
    rejected = Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.0, threshold=-0.7, frame_scores=(-1.0,))
    forced = Decision(accepted=False, reason=Reason.FORCED)
    assert gate.decide_early(2, (forced, rejected)) is None, "a forced block is no rejection"
    assert gate.decide_early(4, (forced, rejected, kept, rejected)) is None
    out = gate.decide_early(3, (forced, rejected, rejected))
    assert out == Decision(accepted=False, reason=Reason.BAILED_OUT)
    assert gate.decide_early(4, (forced, rejected, rejected, out)) == out
    assert Gate().decide_early(4, (rejected,) * 4) is None, "off by default"


def test_of_equal_frames_the_first_is_the_worst():
    assert Decision(accepted=True, reason=Reason.REACHED, frame_scores=(1.0, -1.0, -1.0)).worst_frame == 1
    assert (
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=(1.0, math.nan, -math.inf)).worst_frame == 1
    )


@pytest.mark.parametrize(
    ("policy", "authors"),
    [
        (First(0), "ddd"),
        (First(1), "tdd"),
        (First(2), "ttd"),
        (TargetOnly(), "ttt"),
    ],
    ids=["draft-only", "anchor-only", "first 2", "target-only"],
)
def test_the_papers_routes_without_scores_by_the_policy_that_makes_them(policy, authors):
    """Catches: a first block that is the target's although none is forced."""
    decisions = [policy.decide_early(place, ()) for place in range(3)]
    assert "".join("d" if decision.accepted else "t" for decision in decisions) == authors
    assert not any(decision.scored for decision in decisions)
    assert not policy.needs_scorer


def test_a_stride_of_b_over_k_spreads_k_blocks_evenly_over_b():
    """At 1 + round(i * B / k), StrideAR's form. Catches: a fraction cut off, rounded up, or its errors added up."""
    for blocks in range(1, 25):
        for count in range(1, blocks + 1):
            stride = Stride(blocks / count, forced_blocks=0)
            made = [place for place in range(blocks) if not stride.decide_early(place, ()).accepted]
            assert made == [round(i * blocks / count) for i in range(count)], (blocks, count)


@pytest.mark.parametrize("tau", [math.inf, -math.inf])
def test_infinite_threshold_is_read_back_from_a_report(tau):
    """Catches null in the report, which no route takes, or is read back as no cascade. JSON has no infinity."""
    route = Route(Gate(tau, WorstFrame(math.inf), bail_out=2), handover=1)
    assert from_json(Route, json.loads(json.dumps(as_json(route), allow_nan=False))) == route


TAU = -0.7
EXACT = Route(Gate(TAU, by=WorstFrame(math.inf)))
QUICK = Route(Gate(TAU, by=WorstFrame(0.2)))
FIRST = (0, 4, 7, 11)


def asked(route: Route, scores: list[float], direction: str = ".") -> tuple[Decision, list[list[int]]]:
    """Decide on a draft with these scores; return also which frames each call of the scorer was asked for."""
    calls: list[list[int]] = []

    def score(frames: tuple[int, ...]) -> tuple[float, ...]:
        calls.append([*frames])
        return tuple(float32(scores[frame]) for frame in frames)

    block = PlannedBlock(span=Span(1, 3, 3), place=1, direction=direction)
    return score_and_decide(route, block, len(scores), score), calls


def frame_scores(first: float, others: float) -> list[float]:
    return [first if frame in FIRST else others for frame in range(12)]


def test_the_frames_scored_first_are_spread_over_the_block():
    """Catches: the first four in a row, and a short draft of which some frames are never looked at."""
    assert evenly_spaced(12) == FIRST
    assert evenly_spaced(9) == (0, 3, 5, 8)
    for count in (1, 4):
        assert asked(QUICK, [-0.6] * count)[1] == [[*range(count)]]
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
        whole = Gate(TAU).decide(1, tuple(map(float32, scores)))
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


def test_first_frames_at_the_edge_of_the_margin_keep():
    """The margin includes its edge, as tau does. Catches: `>` instead of `>=`, on either edge."""
    edged = Route(Gate(-0.5, by=WorstFrame(0.25)))
    for score, calls in ((-0.25, 1), (math.nextafter(-0.25, -1), 1), (-0.2500001, 2), (-0.5, 2)):
        decision, asked_for = asked(edged, frame_scores(score, 5.0))
        assert (decision.accepted, len(asked_for)) == (True, calls), score
    for score in (-0.5000001, -0.6):
        decision, asked_for = asked(edged, frame_scores(score, 5.0))
        assert (decision.accepted, len(asked_for)) == (False, 1), score


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
    ("policy", "direction"),
    [
        (Gate(TAU, Mean()), "."),
        (Gate(TAU, Quantile()), "."),
        (Custom(PlannedRouter("a" * 9)), "."),
        (QUICK.policy, "a"),
        (QUICK.policy, "r"),
    ],
    ids=str,
)
def test_all_frames_are_scored_where_the_worst_does_not_decide(policy, direction):
    decision, calls = asked(Route(policy), frame_scores(5.0, 5.0), direction)
    assert (len(decision.known_scores), len(calls)) == (12, 1)
    assert (decision.reason is Reason.REACHED) == (isinstance(policy, Gate) and direction == ".")


@pytest.mark.parametrize(
    ("policy", "score"), [(Gate(by=Mean()), 5.5), (Gate(by=Quantile(1.0)), 11.0), (Stride(), 0.0)], ids=str
)
def test_directed_block_is_reported_by_the_gates_rule(policy, score):
    """Catches: a directed block's score by another rule than its neighbours'; without a gate the worst frame's."""
    decision, _ = asked(Route(policy), [float(frame) for frame in range(12)], "a")
    assert (decision.accepted, decision.reason, decision.score) == (True, Reason.DIRECTED_KEPT, score)


@every_pair("policy, context, margin", POLICIES, CONTEXTS, (0.0, 0.1, math.inf))
def test_hybrid_is_the_planned_route_with_the_same_decisions_bit_for_bit(policy, context, margin):
    """Catches: a draft that is decoded or handed over otherwise because only some of its frames were scored."""
    options = {"blocks": 7, "drafter_context": context}
    hybrid = replace(route_preset("hybrid"), policy=Gate(-0.45, WorstFrame(margin)))
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
