"""What is worked out from rows, on rows whose truth is known."""

import numpy as np
import pytest
from study_rows import CONFIGURATIONS, made_up_plan, made_up_rows

from research.statistics import (
    Bootstrap,
    against_curve,
    cost_with,
    curve_of,
    make_table,
    metric,
)
from sdvg_core.memory.budget import WEIGHTS

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
