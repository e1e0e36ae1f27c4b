"""Routing: unequal scores, a score exactly at tau, every policy and modifier."""

from __future__ import annotations

import math

import pytest
import torch

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
@pytest.mark.parametrize("policy", ["reward", "relative", "scripted"])
@pytest.mark.parametrize("aggregation", ["min", "mean", "quantile"])
def test_a_score_that_is_no_number_rejects_with_its_own_reason(bad, policy, aggregation):
    config = RouterConfig(policy=policy, aggregation=aggregation, script="a" * 9, tau=-math.inf)
    decision = decide(config, 2, scores(1.0, bad, 2.0))
    assert (decision.accepted, decision.reason, decision.worst_frame) == (False, Reason.NOT_FINITE, 1)
    assert decision.frame_scores[0] == 1.0


def test_random_keeps_its_rate_and_depends_on_seed_and_block_alone():
    config = RouterConfig(policy="random", rate=0.7, seed=3)
    kept = [decide_early(config, i, ()).accepted for i in range(1, 4001)]
    # Four standard errors of a coin of 0.7 over 4000 throws are 0.029; the seed is fixed, so this cannot flicker.
    assert sum(kept) / 4000 == pytest.approx(0.7, abs=0.029)
    assert kept[:50] == [decide_early(config, i, ()).accepted for i in range(1, 51)]
    other = RouterConfig(policy="random", rate=0.7, seed=4)
    assert kept[:50] != [decide_early(other, i, ()).accepted for i in range(1, 51)]
    assert all(decide_early(RouterConfig(policy="random", rate=1.0), i, ()).accepted for i in range(1, 99))
    assert not any(decide_early(RouterConfig(policy="random", rate=0.0), i, ()).accepted for i in range(1, 99))


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
        ({"tau": math.nan}, "NaN"),
        ({"tau": "high"}, "tau is 'high'; give a number"),
        ({"rate": 10**400}, "rate is .*; give a number"),
        ({"policy": ["reward"]}, "policy is .*; give text"),
        ({"policy": "scripted", "script": None}, "script is None; give text"),
        ({"policy": "rewrad"}, "reward, first, relative, anchor-only"),
        ({"aggregation": "max"}, "min, mean, quantile"),
        ({"rate": 1.5}, "rate is 1.5; give a share"),
        ({"quantile": -0.1}, "quantile is -0.1; give a share"),
        ({"bail_out": -1}, "bail_out is -1; give 0"),
        ({"handover": -1}, "handover is -1; give 0"),
        *(({"policy": "scripted", "script": text}, "letters") for text in ("rab", "R", "r a")),
    ],
)
def test_bad_settings_say_what_would_do(settings, part):
    with pytest.raises(BadInput, match=part):
        RouterConfig(**settings)


def test_a_script_that_is_too_short_is_refused():
    with pytest.raises(BadInput, match="the script ends before block 9"):
        RouterConfig(policy="scripted", script="raa").check_blocks(8)


@pytest.mark.parametrize(
    ("router", "authors"),
    [
        (RouterConfig(policy="anchor-only", forced_blocks=0), "tdd"),
        (RouterConfig(policy="first", forced_blocks=0), "ddd"),
        (RouterConfig(policy="scripted", script="ddd", forced_blocks=2), "ttd"),
    ],
    ids=lambda given: getattr(given, "policy", given),
)
def test_policies_that_are_almost_first_keep_their_difference(router, authors):
    """Anchor-only leaves the first block to the target though none is forced; forced blocks go before a script."""
    decisions = [decide_early(router, index, ()) for index in range(3)]
    assert "".join("d" if decision.accepted else "t" for decision in decisions) == authors
