"""Routing: unequal scores, a score exactly at tau, every policy and modifier."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from research.routers import PlannedRouter
from sdvg_core.engine.router import Decision, Reason, RouterConfig, aggregate, decide, decide_early
from sdvg_core.errors import BadInput


def scores(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


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
        below = torch.nextafter(scores(tau), scores(-10.0))
        assert not decide(RouterConfig(tau=tau), 1, torch.cat((below, scores(5.0)))).accepted


def test_aggregations():
    values = scores(0.0, 1.0, 2.0, 3.0, 10.0)
    assert aggregate(RouterConfig(), values) == 0.0
    assert aggregate(RouterConfig(aggregation="mean"), values) == pytest.approx(3.2)
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.5), values) == 2.0
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.125), values) == 0.5


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
    "settings, part",
    [
        ({"tau": math.nan}, "tau is nan; give a number"),
        ({"tau": "high"}, "tau is 'high'; give a number"),
        ({"quantile": 10**400}, "quantile is .*; give a number"),
        ({"policy": ["reward"]}, "policy is .*; give reward or first"),
        ({"policy": "rewrad"}, "reward, first, stride, always-target"),
        ({"aggregation": "max"}, "min, mean, quantile"),
        ({"quantile": -0.1}, "quantile is -0.1; give 0 to 1"),
        ({"bail_out": -1}, "bail_out is -1; give 0"),
        ({"handover": -1}, "handover is -1; give 0"),
        *(({"directions": text}, "letters") for text in ("rab", "R", "r a")),
    ],
)
def test_bad_settings_say_what_would_do(settings, part):
    with pytest.raises(BadInput, match=part):
        RouterConfig(**settings)


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
    """Catches null in the report, which no router takes. JSON has no infinity."""
    again = RouterConfig(**json.loads(json.dumps(RouterConfig(tau=tau).settings, allow_nan=False)))
    for score in (-1e6, 1e6):
        assert decide(again, 1, scores(score)).accepted == decide(RouterConfig(tau=tau), 1, scores(score)).accepted
