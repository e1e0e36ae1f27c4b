"""Routing: unequal scores, a score exactly at tau, every policy and modifier, and scoring a few frames first."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from thinned import every_pair
from tiny import CONTEXTS, POLICIES, frames_of, latents_of, make_engine, run, scripted

from research.routers import PlannedRouter
from sdvg_core.engine.plan import NOT_CASCADED, plan_blocks
from sdvg_core.settings.fields import float32
from sdvg_core.settings.route import (
    Decision,
    Reason,
    RouterConfig,
    aggregate,
    decide,
    decide_early,
    router_preset,
    score_and_decide,
    stages,
)


def scores(*values: float) -> tuple[float, ...]:
    return tuple(map(float32, values))


def test_the_worst_frame_decides_not_the_mean():
    """Catches: mean instead of worst frame. The mean is 0.5, the worst frame -0.8."""
    unequal = scores(1.3, 1.0, -0.8)
    assert decide(RouterConfig(tau=-0.7), 1, unequal).reason is Reason.FELL_SHORT
    kept = decide(RouterConfig(tau=-0.7, aggregation="mean"), 1, unequal)
    assert (kept.accepted, kept.reason) == (True, Reason.REACHED)


def test_a_score_exactly_at_tau_is_kept():
    """Catches: `>` instead of `>=`; and comparing a float32 score with a float64 tau."""
    for tau in (-0.7, 0.7, 0.1, -2.5, 0.0):
        assert decide(RouterConfig(tau=tau), 1, scores(tau, 5.0)).accepted
        below = torch.nextafter(torch.tensor(tau, dtype=torch.float32), torch.tensor(-10.0)).item()
        assert not decide(RouterConfig(tau=tau), 1, (below, 5.0)).accepted


def test_aggregations():
    values = scores(0.0, 1.0, 2.0, 3.0, 10.0)
    assert aggregate(RouterConfig(), values) == 0.0
    assert aggregate(RouterConfig(aggregation="mean"), values) == pytest.approx(3.2)
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.5), values) == 2.0
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.125), values) == 0.5


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.37, 0.5, 1.0])
def test_mean_and_quantile_agree_with_torch(quantile):
    """Catches: another way to interpolate, and a result that is not rounded to float32."""
    source = random.Random(3)
    for count in (1, 4, 9, 12):
        drafted = scores(*(source.gauss(0, 2) for _ in range(count)))
        tensor = torch.tensor(drafted, dtype=torch.float32)
        mean = aggregate(RouterConfig(aggregation="mean"), drafted)
        ranked = aggregate(RouterConfig(aggregation="quantile", quantile=quantile), drafted)
        assert [mean, ranked] == pytest.approx(
            [float(tensor.mean()), float(tensor.quantile(quantile))], rel=4e-7, abs=4e-7
        )
        assert [mean, ranked] == [float32(mean), float32(ranked)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("aggregation", ["min", "mean", "quantile"])
def test_a_score_that_is_no_number_rejects_with_its_own_reason(bad, aggregation):
    gate = RouterConfig(aggregation=aggregation, tau=-math.inf)
    for config in (gate, replace(gate, part=PlannedRouter("a" * 9))):
        decision = decide(config, 2, scores(1.0, bad, 2.0))
        assert (decision.accepted, decision.reason, decision.worst_frame) == (False, Reason.NOT_FINITE, 1)
        assert decision.frame_scores[0] == 1.0


def test_bail_out_counts_rejections_in_a_row_and_then_stays():
    config, kept = RouterConfig(bail_out=2), Decision(accepted=True, reason=Reason.REACHED)
    rejected = Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.0, threshold=-0.7, frame_scores=(-1.0,))
    forced = Decision(accepted=False, reason=Reason.FORCED)
    assert decide_early(config, 2, (forced, rejected)) is None, "a forced block is no rejection"
    assert decide_early(config, 4, (forced, rejected, kept, rejected)) is None
    out = decide_early(config, 3, (forced, rejected, rejected))
    assert out == Decision(accepted=False, reason=Reason.BAILED_OUT)
    assert decide_early(config, 4, (forced, rejected, rejected, out)) == out
    assert decide_early(RouterConfig(), 4, (rejected,) * 4) is None, "off by default"


def test_of_equal_frames_the_first_is_the_worst():
    assert Decision(accepted=True, reason=Reason.REACHED, frame_scores=(1.0, -1.0, -1.0)).worst_frame == 1
    assert (
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=(1.0, math.nan, -math.inf)).worst_frame == 1
    )


@pytest.mark.parametrize(
    ("router", "authors"),
    [
        (RouterConfig(policy="first", forced_blocks=0), "ddd"),
        (RouterConfig(policy="first"), "tdd"),
        (RouterConfig(policy="first", forced_blocks=2), "ttd"),
        (RouterConfig(policy="always-target", forced_blocks=0), "ttt"),
    ],
    ids=["draft-only", "anchor-only", "first 2", "target-only"],
)
def test_the_papers_routes_without_scores_by_the_policy_that_makes_them(router, authors):
    """Catches: a first block that is the target's although none is forced."""
    decisions = [decide_early(router, index, ()) for index in range(3)]
    assert "".join("d" if decision.accepted else "t" for decision in decisions) == authors
    assert not any(decision.scored for decision in decisions)
    assert not router.needs_scorer


def test_a_stride_of_b_over_k_spreads_k_blocks_evenly_over_b():
    """At 1 + round(i * B / k), StrideAR's form. Catches: a fraction cut off, rounded up, or its errors added up."""
    for blocks in range(1, 25):
        for count in range(1, blocks + 1):
            router = RouterConfig(policy="stride", stride=blocks / count, forced_blocks=0)
            made = [index for index in range(blocks) if not decide_early(router, index, ()).accepted]
            assert made == [round(i * blocks / count) for i in range(count)], (blocks, count)


@pytest.mark.parametrize("tau", [math.inf, -math.inf])
def test_a_threshold_without_end_can_be_made_again_from_its_report(tau):
    """Catches null in the report, which no router takes, or is read back as no cascade. JSON has no infinity."""
    assert RouterConfig(**{**EXACT.settings, "directions": ""}).cascade == 1e9
    again = RouterConfig(**json.loads(json.dumps(RouterConfig(tau=tau).settings, allow_nan=False)))
    for score in (-1e6, 1e6):
        assert decide(again, 1, scores(score)).accepted == decide(RouterConfig(tau=tau), 1, scores(score)).accepted


TAU = -0.7
EXACT = RouterConfig(tau=TAU, cascade=math.inf)
QUICK = RouterConfig(tau=TAU, cascade=0.2)
FIRST = (0, 4, 7, 11)


def asked(config: RouterConfig, scores: list[float]) -> tuple[Decision, list[list[int]]]:
    """Decide on a draft with these scores; return also which frames each call of the scorer was asked for."""
    calls: list[list[int]] = []

    def score(frames: tuple[int, ...]) -> tuple[float, ...]:
        calls.append([*frames])
        return tuple(float32(scores[frame]) for frame in frames)

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
        whole = decide(RouterConfig(tau=TAU), 1, tuple(map(float32, scores)))
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
    edged = RouterConfig(tau=-0.5, cascade=0.25)
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
