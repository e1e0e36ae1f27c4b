"""What is worked out from rows, on rows whose truth is known."""

from __future__ import annotations

import json
from statistics import NormalDist

import numpy as np
import pytest
from study_rows import CONFIGURATIONS, made_up_gains, made_up_plan, made_up_rows

from sdvg_core.errors import BadInput
from sdvg_core.study.calibrate import calibrate
from sdvg_core.study.compare import against_curve, make_table, metric, random_curve, seconds, target_calls
from sdvg_core.study.gate import gate_correlations
from sdvg_core.study.statistics import Bootstrap, interval, pearson, ranks, spearman

QUALITY = metric("quality")


def table_of(prompts: int = 40, **options):
    plan = made_up_plan(prompts)
    return make_table(made_up_rows(plan, **options), plan.prompts, plan.seeds)


@pytest.fixture(scope="module")
def table():
    return table_of()


# --- intervals


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    values = np.random.default_rng(3).normal(size=400)
    found = Bootstrap(400).mean(values)
    half = 1.96 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.value == pytest.approx(half, rel=0.1)
    assert found.value - found.low == pytest.approx(half, rel=0.1)


def test_the_same_draws_come_again_from_the_same_seed():
    assert np.array_equal(Bootstrap(7).weights, Bootstrap(7).weights)
    assert np.array_equal(Bootstrap(7).weights[0], np.full(7, 1 / 7))


def test_a_difference_is_paired(table):
    """Prompts are 3 dB apart, so an unpaired interval would be wide: this one is narrow and holds the true 8 dB."""
    found = table.difference("target-only", "anchor-only", QUALITY)
    assert found.low < 8 < found.high
    assert found.high - found.low < 0.4
    assert found.side == 1
    alone = table.mean("target-only", QUALITY)
    assert alone.high - alone.low > 1


def test_prompts_are_drawn_with_all_their_seeds():
    """A prompt's seeds are alike, so twice as many seeds are not twice as many prompts."""
    table = table_of(noise=0.0)
    assert table.per_prompt("target-only", QUALITY).shape == (40,)


def test_an_undefined_figure_has_no_interval():
    assert interval(np.array([np.nan, 1.0])) is None
    assert interval(np.array([1.0, np.nan])) is None
    found = interval(np.array([1.0, np.nan, 1.0, 1.0]))
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_equal_values_share_a_rank():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    rising = np.array([1.0, 2.0, 3.0, 10.0])
    assert spearman(rising, np.exp(rising)) == pytest.approx(1.0)
    assert pearson(rising, np.exp(rising)) < 0.99
    assert np.isnan(pearson(rising, np.ones(4)))


# --- at matched cost


def test_a_gate_that_is_no_better_than_chance_spans_zero_at_the_same_cost(table):
    """Its quality is far above anchor-only's: only at the same cost is there nothing left of that."""
    curve = random_curve(CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "random@0.2", "random@0.4", "random@0.6", "random@0.8"}
    for cost in (target_calls, seconds):
        found = against_curve(table, "reward-min@0", curve, cost, QUALITY)
        assert found.side == 0
        assert abs(found.value) < 0.2
    assert table.difference("reward-min@0", "anchor-only", QUALITY).value > 3


def test_a_gate_that_is_better_than_chance_is_found_to_be_and_by_how_much():
    found = against_curve(
        table_of(gate_bonus=0.5), "reward-min@0", random_curve(CONFIGURATIONS), target_calls, QUALITY
    )
    assert found.side == 1
    assert found.value == pytest.approx(0.5, abs=0.15)


def test_beyond_the_curve_there_is_nothing_to_compare_with(table):
    curve = ("random@0.4", "random@0.6")
    assert against_curve(table, "reward-min@-1", curve, target_calls, QUALITY) is None
    assert against_curve(table, "reward-min@-1", curve[:1], target_calls, QUALITY) is None


# --- the gate


def test_the_correlation_of_score_and_gain_is_found():
    plan = made_up_plan(30)
    knowing = gate_correlations(made_up_gains(plan, slope=-1.0), plan.prompts)
    blind = gate_correlations(made_up_gains(plan, slope=0.0), plan.prompts)
    assert set(knowing) == {f"{s}_{c}" for s in ("worst_score", "mean_score") for c in ("pearson", "spearman")}
    assert all(found.high < -0.8 for found in knowing.values())
    assert all(found.side == 0 for found in blind.values())


def test_without_a_judge_there_is_no_correlation():
    plan = made_up_plan(3)
    gains = [{**gain, "draft_quality": None} for gain in made_up_gains(plan, slope=1.0)]
    assert gate_correlations(gains, plan.prompts) == {}


# --- calibration


def test_calibration_finds_the_quantile_of_the_scores(table):
    """Scores are standard normal: 5 of 9 blocks are drafts if 5 of the 8 scored ones are kept."""
    found = calibrate(table, CONFIGURATIONS, "draft share", 5 / 9)
    truth = NormalDist().inv_cdf(3 / 8)
    assert found.tau.low < truth < found.tau.high
    assert found.tau.value == pytest.approx(truth, abs=0.15)
    assert found.reached.value == pytest.approx(5 / 9, abs=0.01)
    assert found.reached.low < 5 / 9 < found.reached.high
    assert 0.02 < found.miss < 0.3
    assert "for a draft share of 0.556" in str(found)


def test_more_prompts_make_calibration_surer(table):
    few, many = (calibrate(t, CONFIGURATIONS, "draft share", 0.5).tau for t in (table_of(8), table))
    assert few.high - few.low > 1.5 * (many.high - many.low)


def test_calibration_for_a_speed_up_reads_the_seconds(table):
    """A video takes 5.7 s and one for each target call; target-only 14.7 s, so 1.5 is 4.1 target calls."""
    found = calibrate(table, CONFIGURATIONS, "speed-up", 1.5)
    kept = (9 - (14.7 / 1.5 - 5.7)) / 8
    assert found.tau.value == pytest.approx(NormalDist().inv_cdf(1 - kept), abs=0.15)
    assert found.reached.value == pytest.approx(1.5, abs=0.02)


def test_calibration_refuses_what_no_threshold_gives(table):
    with pytest.raises(BadInput, match=r"give a draft share from 0\.1\d* to 0\.7\d*.*but got 0\.95; .*--tau"):
        calibrate(table, CONFIGURATIONS, "draft share", 0.95)
    one = [c for c in CONFIGURATIONS if c.name in ("target-only", "reward-min@0")]
    with pytest.raises(BadInput, match="at least two thresholds"):
        calibrate(table, one, "draft share", 0.5)


def test_calibration_is_json(table):
    assert json.loads(json.dumps(calibrate(table, CONFIGURATIONS, "draft share", 0.5).as_dict()))["prompts"] == 40
