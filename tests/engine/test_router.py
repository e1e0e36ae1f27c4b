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
from sdvg_core.errors import BadInput
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.fields import as_json, float32, from_json
from sdvg_core.settings.route import (
    At,
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


def test_worst_frame_decides_and_not_the_mean():
    """Catches: mean instead of worst frame. The mean is 0.5, the worst frame -0.8."""
    unequal = scores(1.3, 1.0, -0.8)
    assert Gate(-0.7).decide(1, unequal).reason is Reason.FELL_SHORT
    assert Gate(-0.7, Mean()).decide(1, unequal).reason is Reason.REACHED


@pytest.mark.parametrize("tau", [-0.7, 0.7, 0.1, -2.5, 0.0])
def test_score_exactly_at_tau_is_kept(tau):
    """Catches: `>` instead of `>=`; and comparing a float32 score with a float64 tau."""
    below = torch.nextafter(torch.tensor(tau, dtype=torch.float32), torch.tensor(-10.0)).item()
    assert Gate(tau).decide(1, scores(tau, 5.0)).accepted
    assert not Gate(tau).decide(1, (below, 5.0)).accepted


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.37, 0.5, 1.0])
def test_mean_and_quantile_agree_with_torch(quantile):
    """Catches: another way to interpolate, and a result that is not rounded to float32."""
    source = random.Random(3)
    for count in (1, 4, 9, 12):
        drafted = scores(*(source.gauss(0, 2) for _ in range(count)))
        tensor = torch.tensor(drafted, dtype=torch.float32)
        mean = Mean().aggregate(drafted)
        ranked = Quantile(quantile).aggregate(drafted)
        assert mean == pytest.approx(float(tensor.mean()), rel=4e-7, abs=4e-7)
        assert ranked == pytest.approx(float(tensor.quantile(quantile)), rel=4e-7, abs=4e-7)
        assert mean == float32(mean)
        assert ranked == float32(ranked)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "policy",
    [*(Gate(-math.inf, by) for by in (WorstFrame(), Mean(), Quantile())), Custom(PlannedRouter("a" * 9))],
    ids=str,
)
def test_nonfinite_score_rejects_as_such(bad, policy):
    """Also where every score is enough. Catches: NaN, for which no comparison holds, taken for a high score."""
    decision = policy.decide(2, scores(1.0, bad, 2.0))
    assert not decision.accepted
    assert decision.reason is Reason.NOT_FINITE
    assert decision.worst_frame == 1
    assert decision.frame_scores[0] == 1.0


KEPT = Decision(accepted=True, reason=Reason.REACHED)
REJECTED = Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.0, threshold=-0.7, frame_scores=(-1.0,))
FORCED = Decision(accepted=False, reason=Reason.FORCED)
BAILED_OUT = Decision(accepted=False, reason=Reason.BAILED_OUT)


@pytest.mark.parametrize(
    ("before", "decision"),
    [
        ((FORCED, REJECTED), None),  # a forced block is no rejection
        ((FORCED, REJECTED, KEPT, REJECTED), None),
        ((FORCED, REJECTED, REJECTED), BAILED_OUT),
        ((FORCED, REJECTED, REJECTED, BAILED_OUT), BAILED_OUT),
    ],
    ids=["forced", "not in a row", "in a row", "for good"],
)
def test_bail_out_counts_rejections_in_a_row(before, decision):
    assert Gate(bail_out=2).decide_early(len(before), before) == decision


def test_bail_out_is_off_by_default():
    assert Gate().decide_early(4, (REJECTED,) * 4) is None


@pytest.mark.parametrize("frame_scores", [(1.0, -1.0, -1.0), (1.0, math.nan, -math.inf)])
def test_first_of_equally_bad_frames_is_the_worst(frame_scores):
    assert Decision(accepted=False, reason=Reason.FELL_SHORT, frame_scores=frame_scores).worst_frame == 1


@pytest.mark.parametrize(
    ("policy", "authors"),
    [
        (First(0), "ddd"),
        (First(1), "tdd"),
        (First(2), "ttd"),
        (At(()), "tdd"),
        (At((3,)), "tdt"),
        (TargetOnly(), "ttt"),
    ],
    ids=["draft-only", "anchor-only", "first 2", "at none", "at 3", "target-only"],
)
def test_policies_without_scores_make_published_routes(policy, authors):
    """Catches: a first block that is the target's although none is forced."""
    decisions = [policy.decide_early(place, ()) for place in range(3)]
    assert "".join("d" if decision.accepted else "t" for decision in decisions) == authors
    assert not any(decision.scored for decision in decisions)
    assert not policy.needs_scorer


def test_stated_blocks_are_kept_in_order_once():
    """Catches: two values of one route, whose videos would not be found again. Block 1 is the target's anyway."""
    assert At((5, 2, 1, 5)) == At([2, 5]) == At()


@pytest.mark.parametrize("blocks", [(0,), (2, -3), (2.0,), "25", (True,), 3, (10**5000,)])
def test_bad_block_number_is_refused(blocks):
    with pytest.raises(BadInput, match="target at is"):
        At(blocks)


def test_fractional_stride_spreads_blocks_evenly():
    """At 1 + round(i * B / k), StrideAR's form. Catches: a fraction cut off, rounded up, or its errors added up."""
    for blocks in range(1, 25):
        for count in range(1, blocks + 1):
            stride = Stride(blocks / count, forced_blocks=0)
            of_target = [place for place in range(blocks) if not stride.decide_early(place, ()).accepted]
            assert of_target == [round(i * blocks / count) for i in range(count)], (blocks, count)


@pytest.mark.parametrize("tau", [math.inf, -math.inf])
def test_infinite_threshold_is_read_back_from_a_report(tau):
    """Catches null in the report, which no route takes, or is read back as no cascade. JSON has no infinity."""
    route = Route(Gate(tau, WorstFrame(math.inf), bail_out=2), handover=1)
    assert from_json(Route, json.loads(json.dumps(as_json(route), allow_nan=False))) == route


# --- a cascade: four frames are scored first, then the others if they are needed

TAU = -0.7
EXACT = Route(Gate(TAU, by=WorstFrame(math.inf)))
QUICK = Route(Gate(TAU, by=WorstFrame(0.2)))
FIRST = (0, 4, 7, 11)


def decide_on(route: Route, scores: list[float], direction: str = ".") -> tuple[Decision, list[list[int]]]:
    """Decide on a draft with these scores; return also which frames each call of the scorer was asked for."""
    calls: list[list[int]] = []

    def score(frames: tuple[int, ...]) -> tuple[float, ...]:
        calls.append([*frames])
        return tuple(float32(scores[frame]) for frame in frames)

    block = PlannedBlock(span=Span(1, 3, 3), place=1, direction=direction)
    return score_and_decide(route, block, len(scores), score), calls


def frame_scores(first: float, others: float) -> list[float]:
    return [first if frame in FIRST else others for frame in range(12)]


def test_first_frames_are_spread_over_the_block():
    """Catches: the first four in a row, and a short draft of which some frames are never looked at."""
    assert evenly_spaced(12) == FIRST
    assert evenly_spaced(9) == (0, 3, 5, 8)
    for count in (1, 4):
        assert decide_on(QUICK, [-0.6] * count)[1] == [[*range(count)]]
    assert decide_on(QUICK, frame_scores(5.0, 5.0))[1] == [[*FIRST]]


def test_infinite_margin_keeps_what_a_gate_keeps():
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
        decision, _ = decide_on(EXACT, scores)
        assert decision.accepted == whole.accepted, scores
        if decision.accepted:
            assert decision == whole, "a draft that is kept was scored whole"
        kept.append(decision.accepted)
    assert 40 < sum(kept) < 160


def test_first_frames_below_tau_reject_at_once():
    """Catches: a draft that is kept on a low score, and one that is scored whole to be rejected."""
    decision, calls = decide_on(QUICK, frame_scores(-0.8, 5.0))
    assert decision.reason is Reason.FELL_SHORT
    assert calls == [[*FIRST]]
    assert decision.score == pytest.approx(-0.8)
    assert [frame for frame, score in enumerate(decision.frame_scores) if score is not None] == [*FIRST]


def test_first_block_of_a_clip_has_fewer_frames():
    """Its first latent frame is one pixel frame. Catches: a cascade that looks for frames beyond its end."""
    router = Gate(-100.0, by=WorstFrame(0.0), forced_blocks=0)
    first, second = run(make_engine(), Route(router), blocks=2)
    scored = [
        [frame for frame, score in enumerate(emitted.record.decision.frame_scores) if score is not None]
        for emitted in (first, second)
    ]
    assert scored == [[0, 3, 5, 8], [0, 4, 7, 11]]


def test_first_frames_above_the_margin_keep_at_once():
    """Whatever the others are, here NaN. Catches: a draft that is scored whole to be kept."""
    decision, calls = decide_on(QUICK, frame_scores(-0.49, math.nan))
    assert decision.reason is Reason.REACHED
    assert calls == [[*FIRST]]
    assert len(decision.known_scores) == 4
    assert decision.worst_frame == 0


@pytest.mark.parametrize(
    ("score", "accepted", "calls"),
    [
        (-0.25, True, 1),
        (math.nextafter(-0.25, -1), True, 1),  # the same in float32
        (-0.2500001, True, 2),
        (-0.5, True, 2),
        (-0.5000001, False, 1),
        (-0.6, False, 1),
    ],
)
def test_margin_includes_its_edge(score, accepted, calls):
    """As tau does. Catches: `>` instead of `>=`, on either edge."""
    edged = Route(Gate(-0.5, by=WorstFrame(0.25)))
    decision, frames_scored = decide_on(edged, frame_scores(score, 5.0))
    assert decision.accepted is accepted
    assert len(frames_scored) == calls


@pytest.mark.parametrize(("others", "accepted"), [(-0.6, True), (-0.71, False), (math.nan, False)])
def test_frames_within_margin_score_the_others_at_once(others, accepted):
    """Catches: a margin of the wrong sign, and scores given to the wrong frames."""
    decision, calls = decide_on(QUICK, frame_scores(-0.6, others))
    assert decision.accepted is accepted
    assert [len(call) for call in calls] == [4, 8]
    assert decision.frame_scores[4] == pytest.approx(-0.6)
    assert decision.frame_scores[1] == pytest.approx(others, nan_ok=True)


def test_worst_frame_may_be_scored_second():
    scores = frame_scores(-0.6, -0.6)
    scores[5] = -0.9
    decision, _ = decide_on(QUICK, scores)
    assert decision.worst_frame == 5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_first_frames_reject_as_such(bad):
    scores = frame_scores(5.0, 5.0)
    scores[7] = bad
    decision, calls = decide_on(QUICK, scores)
    assert decision.reason is Reason.NOT_FINITE
    assert decision.worst_frame == 7
    assert len(calls) == 1


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
def test_other_rules_score_all_frames(policy, direction):
    """Where the worst frame does not decide. Catches: a mean of four frames, or a directed block scored in part."""
    decision, calls = decide_on(Route(policy), frame_scores(5.0, 5.0), direction)
    assert len(decision.known_scores) == 12
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("policy", "score"), [(Gate(by=Mean()), 5.5), (Gate(by=Quantile(1.0)), 11.0), (Stride(), 0.0)], ids=str
)
def test_directed_block_is_reported_by_the_gates_rule(policy, score):
    """Catches: a directed block's score by another rule than its neighbours'; without a gate the worst frame's."""
    decision, _ = decide_on(Route(policy), [float(frame) for frame in range(12)], "a")
    assert decision.reason is Reason.DIRECTED_KEPT
    assert decision.score == score


@every_pair("policy, context, margin", POLICIES, CONTEXTS, (0.0, 0.1, math.inf))
def test_hybrid_equals_the_planned_route(policy, context, margin):
    """Catches: a draft that is decoded or handed over otherwise because only some of its frames were scored."""
    options = {"blocks": 7, "drafter_context": context}
    route = replace(route_preset("hybrid"), policy=Gate(-0.45, WorstFrame(margin)))
    hybrid = run(make_engine(policy, schedule="four-step"), route, **options)
    letters = "".join("ra"[shown.record.decision.accepted] for shown in hybrid)
    assert {"a", "r"} == set(letters[1:])
    planned = run(make_engine(policy, schedule="four-step"), scripted(letters, handover=3), **options)
    assert torch.equal(latents_of(hybrid), latents_of(planned))
    assert torch.equal(frames_of(hybrid), frames_of(planned))
    assert [shown.record.handover for shown in hybrid] == [0, *(3 * (letter == "r") for letter in letters[1:])]
    unscored_frames = [shown.record.decision.frame_scores.count(None) for shown in hybrid]
    assert 8 in unscored_frames
