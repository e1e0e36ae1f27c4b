"""What is worked out from rows, on rows whose truth is known."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from study_rows import CONFIGURATIONS, made_up_gains, made_up_plan, made_up_rows

from research.calibrate import calibrate
from research.statistics import (
    Bootstrap,
    against_curve,
    cost_with,
    curve_of,
    make_table,
    metric,
)
from research.study import read_classes
from research.summary import by_class, gate_correlations
from sdvg_core.errors import BadInput
from sdvg_core.memory.counts import WEIGHTS

QUALITY = metric("quality")


def target_calls(row) -> float:
    return row["target_calls"]


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


def test_a_difference_is_paired(table):
    """Prompts are 3 dB apart, so an unpaired interval would be wide: this one is narrow and holds the true 8 dB."""
    found = table.difference("target-only", "anchor-only", QUALITY)
    assert found.low < 8 < found.high
    assert found.high - found.low < 0.4
    assert found.low > 0
    alone = table.mean("target-only", QUALITY)
    assert alone.high - alone.low > 1


# --- at matched cost


def test_a_gate_that_is_no_better_than_chance_spans_zero_at_the_same_cost(table):
    """Its quality is far above anchor-only's: only at the same cost is there nothing left of that."""
    curve = curve_of("random", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "random@0.3", "random@0.6", "random@0.8"}
    found = against_curve(table, "reward-min@0", curve, target_calls, QUALITY)
    assert found.low < 0 < found.high
    assert abs(found.value) < 0.2
    assert table.difference("reward-min@0", "anchor-only", QUALITY).value > 3


def test_at_equal_cost_a_gate_pays_for_the_drafts_and_scores_it_throws_away(table):
    """As good as the first m at as many target calls, it is worse at the same cost. Catches: passes not counted."""
    curve = curve_of("first", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "draft-only", *(f"first@{m}" for m in range(2, 9))}
    cost = cost_with(WEIGHTS)
    paired = against_curve(table, "reward-min@0", curve, target_calls, QUALITY)
    assert paired.low < 0 < paired.high
    assert against_curve(table, "reward-min@0", curve, cost, QUALITY).high < -0.5


# --- classes of prompts


def test_classes_are_read_from_the_lines_of_a_file():
    lines = ["[animals] a dog runs", "a car", "[ two words ]  a [red] ball", "[] x", "[open a box"]
    assert read_classes(lines) == {
        "a dog runs": "animals", "a car": None, "a [red] ball": "two words", "[] x": None, "[open a box": None,
    }  # fmt: skip


def test_a_class_of_few_prompts_gets_no_interval_in_a_study_of_many():
    """Catches: intervals over the prompts of a class, told by how many the whole study has."""
    plan = made_up_plan(13)
    classes = {prompt: "many" if i < 10 else "few" for i, prompt in enumerate(plan.prompts)}
    many, few = by_class(made_up_rows(plan), replace(plan, classes=classes), "quality")
    for told in (few["target_gain"], few["draft_share"]["reward-min@0"]):
        assert told["value"] > 0
        assert told["low"] is told["high"] is None
    for told in (many["target_gain"], many["draft_share"]["reward-min@0"]):
        assert told["low"] < told["value"] < told["high"]


# --- the gate


def test_the_correlation_of_score_and_gain_is_found():
    plan = made_up_plan(30)
    knowing = gate_correlations(made_up_gains(plan, slope=-1.0), plan.prompts)
    blind = gate_correlations(made_up_gains(plan, slope=0.0), plan.prompts)
    assert set(knowing) == {f"{s}_{c}" for s in ("worst_score", "mean_score") for c in ("pearson", "spearman")}
    assert all(found.high < -0.8 for found in knowing.values())
    assert all(found.low < 0 < found.high for found in blind.values())


# --- calibration


def test_calibration_finds_the_quantile_of_the_scores(table):
    """Scores are standard normal: 5 of 9 blocks are drafts if 5 of the 8 scored ones are kept."""
    found = calibrate(table, CONFIGURATIONS, 5 / 9)
    truth = NormalDist().inv_cdf(3 / 8)
    assert found["tau"].low < truth < found["tau"].high
    assert found["tau"].value == pytest.approx(truth, abs=0.15)
    assert found["reached"].value == pytest.approx(5 / 9, abs=0.01)
    assert found["reached"].low < 5 / 9 < found["reached"].high
    assert 0.02 < found["miss"] < 0.3


def test_calibration_refuses_what_no_threshold_gives(table):
    with pytest.raises(BadInput, match=r"share 0\.95 lies outside 0\.1\d* to 0\.7\d*.*--tau"):
        calibrate(table, CONFIGURATIONS, 0.95)
    one = [c for c in CONFIGURATIONS if c.name in ("target-only", "reward-min@0")]
    with pytest.raises(BadInput, match="needs two thresholds"):
        calibrate(table, one, 0.5)
