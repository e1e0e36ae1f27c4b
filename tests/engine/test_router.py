"""Routing: unequal scores, a score exactly at tau, every policy and modifier."""

from __future__ import annotations

import math

import pytest
import torch

from sdvg_core.engine.router import Decision, Reason, RouterConfig, aggregate, decide, foresee
from sdvg_core.errors import BadInput


def scores(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_worst_frame_decides_not_the_mean():
    """Catches: mean instead of worst frame. The mean is 0.5, the worst frame -0.8."""
    unequal = scores(1.3, 1.0, -0.8)
    assert decide(RouterConfig(tau=-0.7), 1, unequal, (), 9).reason is Reason.FELL_SHORT
    kept = decide(RouterConfig(tau=-0.7, aggregation="mean"), 1, unequal, (), 9)
    assert (kept.accepted, kept.reason) == (True, Reason.REACHED)


def test_a_score_exactly_at_tau_is_kept():
    """Catches: `>` instead of `>=`; and comparing a float32 score with a float64 tau."""
    for tau in (-0.7, 0.7, 0.1, -2.5, 0.0):
        assert decide(RouterConfig(tau=tau), 1, scores(tau, 5.0), (), 9).accepted
        below = torch.nextafter(scores(tau), scores(-10.0))
        assert not decide(RouterConfig(tau=tau), 1, torch.cat((below, scores(5.0))), (), 9).accepted


def test_aggregations():
    values = scores(0.0, 1.0, 2.0, 3.0, 10.0)
    assert aggregate(RouterConfig(), values) == 0.0
    assert aggregate(RouterConfig(aggregation="mean"), values) == pytest.approx(3.2)
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.5), values) == 2.0
    assert aggregate(RouterConfig(aggregation="quantile", quantile=0.125), values) == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", ["reward", "percentile", "scripted"])
@pytest.mark.parametrize("aggregation", ["min", "mean", "quantile"])
def test_a_score_that_is_no_number_rejects_with_its_own_reason(bad, policy, aggregation):
    config = RouterConfig(policy=policy, aggregation=aggregation, script="a" * 9, tau=-math.inf)
    decision = decide(config, 2, scores(1.0, bad, 2.0), (), 9)
    assert (decision.accepted, decision.reason, decision.worst_frame) == (False, Reason.NOT_FINITE, 1)
    assert decision.frame_scores[0] == 1.0


def test_the_first_block_is_the_targets_whatever_the_policy():
    """Catches: forced block ignored."""
    for policy in ("reward", "percentile", "random", "anchor-only", "always-draft", "scripted"):
        config = RouterConfig(policy=policy, rate=1.0, script="a")
        assert foresee(config, 0, ()) == Decision(accepted=False, reason=Reason.FORCED)


def test_without_forced_blocks_the_policy_decides_on_block_0():
    assert foresee(RouterConfig(forced_blocks=0), 0, ()) is None
    assert foresee(RouterConfig(policy="always-draft", forced_blocks=0), 0, ()).accepted
    assert not foresee(RouterConfig(policy="anchor-only", forced_blocks=0), 0, ()).accepted


def test_random_keeps_its_rate_and_depends_on_seed_and_block_alone():
    config = RouterConfig(policy="random", rate=0.7, seed=3)
    kept = [foresee(config, i, ()).accepted for i in range(1, 4001)]
    # Four standard errors of a coin of 0.7 over 4000 throws are 0.029; the seed is fixed, so this cannot flicker.
    assert sum(kept) / 4000 == pytest.approx(0.7, abs=0.029)
    assert kept[:50] == [foresee(config, i, ()).accepted for i in range(1, 51)]
    other = RouterConfig(policy="random", rate=0.7, seed=4)
    assert kept[:50] != [foresee(other, i, ()).accepted for i in range(1, 51)]
    assert all(foresee(RouterConfig(policy="random", rate=1.0), i, ()).accepted for i in range(1, 99))
    assert not any(foresee(RouterConfig(policy="random", rate=0.0), i, ()).accepted for i in range(1, 99))


def test_the_script_is_read_by_block_number():
    config = RouterConfig(policy="scripted", script="rara", tau=100.0)
    reasons = [decide(config, i, scores(-5.0), (), 4).reason for i in range(4)]
    assert reasons == [Reason.SCRIPT_REMADE, Reason.SCRIPT_KEPT] * 2


def rejection() -> Decision:
    return Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.0, threshold=-0.7, frame_scores=(-1.0,))


def acceptance(score: float = 0.0) -> Decision:
    return Decision(accepted=True, reason=Reason.REACHED, score=score, threshold=-0.7, frame_scores=(score,))


def test_bail_out_counts_rejections_in_a_row_and_then_stays():
    config = RouterConfig(bail_out=2)
    forced = Decision(accepted=False, reason=Reason.FORCED)
    assert foresee(config, 2, (forced, rejection())) is None, "a forced block is no rejection"
    assert foresee(config, 4, (forced, rejection(), acceptance(), rejection())) is None
    out = foresee(config, 3, (forced, rejection(), rejection()))
    assert out == Decision(accepted=False, reason=Reason.BAILED_OUT)
    assert foresee(config, 4, (forced, rejection(), rejection(), out)) == out
    assert foresee(RouterConfig(), 4, (rejection(),) * 4) is None, "off by default"


def test_percentile_reaches_its_draft_share_on_the_scores_of_the_run_alone():
    config = RouterConfig(policy="percentile", draft_share=0.6)
    past: tuple[Decision, ...] = (Decision(accepted=False, reason=Reason.FORCED),)
    g = torch.Generator().manual_seed(0)
    for i in range(1, 300):
        past = (*past, decide(config, i, torch.randn(12, generator=g) + 3.0, past, 300))
    share = sum(d.accepted for d in past) / 300
    assert share == pytest.approx(0.6, abs=0.06)


FORCED = Decision(accepted=False, reason=Reason.FORCED)


def test_percentile_starts_from_the_prior():
    config = RouterConfig(policy="percentile", draft_share=0.5 * 8 / 9, prior_mean=1.0, prior_std=2.0)
    assert decide(config, 1, scores(1.0), (FORCED,), 9).threshold == pytest.approx(1.0)
    assert decide(config, 1, scores(0.9), (FORCED,), 9).reason is Reason.FELL_SHORT


def test_percentile_leaves_the_prior_with_the_fifth_score():
    """Catches: one score too early or too late."""
    config = RouterConfig(policy="percentile", draft_share=0.5 * 8 / 9, prior_mean=100.0)
    seen = (FORCED, *(acceptance(float(n)) for n in range(5)))
    assert decide(config, 5, scores(0.0), seen[:5], 9).threshold == pytest.approx(100.0)
    assert decide(config, 6, scores(0.0), seen, 9).threshold == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("first", "forced", "share"), [(0, 1, 0.5 * 8 / 9), (9, 1, 0.5), (1, 3, 0.5 * 7 / 9), (20, 3, 0.5)]
)
def test_percentile_makes_up_for_the_forced_blocks_of_this_run_alone(first, forced, share):
    """Catches: counting blocks that an earlier run made, or making up for forced ones that it made."""
    config = RouterConfig(policy="percentile", draft_share=share, forced_blocks=forced, prior_mean=1.0)
    past = (FORCED,) * max(forced - first, 0)
    decision = decide(config, first + len(past), scores(0.0), past, 9)
    assert decision.threshold == pytest.approx(1.0), "half of the blocks that are drafted"


def test_of_equal_frames_the_first_is_the_worst():
    assert Decision(accepted=True, reason=Reason.REACHED, frame_scores=(1.0, -1.0, -1.0)).worst_frame == 1
    assert (
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=(1.0, math.nan, -math.inf)).worst_frame == 1
    )


def test_percentile_at_its_ends():
    """Catches: a share that rounds to none when it is taken from one."""
    for share, keep in ((0.0, False), (1e-320, False), (1.0, True)):
        config = RouterConfig(policy="percentile", draft_share=share)
        assert decide(config, 1, scores(-50.0 if keep else 50.0), (), 9).accepted is keep


@pytest.mark.parametrize(
    "settings, part",
    [
        ({"tau": math.nan}, "NaN"),
        ({"policy": "rewrad"}, "reward, first, relative, percentile"),
        ({"aggregation": "max"}, "min, mean, quantile"),
        ({"rate": 1.5}, "rate must be a share from 0 to 1"),
        ({"quantile": -0.1}, "quantile must be a share from 0 to 1"),
        ({"draft_share": 72.0}, "draft_share must be a share from 0 to 1"),
        ({"bail_out": -1}, "bail_out must be 0"),
        ({"handover": -1}, "handover must be 0"),
        ({"prior_std": 0.0}, "prior_std > 0"),
    ],
)
def test_bad_settings_say_what_would_do(settings, part):
    with pytest.raises(BadInput, match=part):
        RouterConfig(**settings)


@pytest.mark.parametrize("text", ["rab", "R", "r a", "a" * 100_001])
def test_a_bad_script_is_refused(text):
    with pytest.raises(BadInput, match="letters"):
        RouterConfig(policy="scripted", script=text)


def test_a_script_that_is_too_short_is_refused():
    with pytest.raises(BadInput, match="letters for 3 blocks, but the clip has 9"):
        RouterConfig(policy="scripted", script="raa").check_blocks(8)
