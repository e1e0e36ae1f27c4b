"""What is worked out from rows, on rows whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from study_rows import CONFIGURATIONS, made_up_gains, made_up_plan, made_up_rows

from research.calibrate import calibrate
from research.classes import by_class, read_classes
from research.compare import _read_off, against_curve, curve_of, make_table, metric
from research.costs import cost_with, pass_weights, seconds, target_calls
from research.gate import gate_correlations
from research.protocol import every_route
from research.room import room_above
from research.run import Plan
from research.statistics import Bootstrap, interval, pearson, ranks, spearman
from sdvg_core.errors import BadInput
from sdvg_core.plan import PlanRequest
from sdvg_core.plan.work import step_seconds

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
    curve = curve_of("random", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "random@0.2", "random@0.4", "random@0.6", "random@0.8"}
    for cost in (target_calls, seconds):
        found = against_curve(table, "reward-min@0", curve, cost, QUALITY)
        assert found.side == 0
        assert abs(found.value) < 0.2
    assert table.difference("reward-min@0", "anchor-only", QUALITY).value > 3


def test_a_gate_that_is_better_than_chance_is_found_to_be_and_by_how_much():
    found = against_curve(
        table_of(gate_bonus=0.5), "reward-min@0", curve_of("random", CONFIGURATIONS), target_calls, QUALITY
    )
    assert found.side == 1
    assert found.value == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("points", [2, 3, 7])
def test_a_curve_is_read_off_as_numpy_does_in_every_draw(points):
    """With equal costs among its points, and costs beyond its ends."""
    draw = np.random.default_rng(points)
    costs, qualities = draw.integers(0, 5, (500, points)).astype(float), draw.normal(size=(500, points))
    cost = draw.normal(2, 3, 500)
    orders = costs.argsort(axis=1, kind="stable")
    rows = zip(cost, costs, qualities, orders, strict=True)
    expected = [np.interp(at, x[order], y[order]) for at, x, y, order in rows]
    assert _read_off(cost, costs, qualities) == pytest.approx(np.array(expected))


def test_beyond_the_curve_there_is_nothing_to_compare_with(table):
    curve = ("random@0.4", "random@0.6")
    assert against_curve(table, "reward-min@-1", curve, target_calls, QUALITY) is None
    assert against_curve(table, "reward-min@-1", curve[:1], target_calls, QUALITY) is None


def test_at_equal_cost_a_gate_pays_for_the_drafts_and_scores_it_throws_away(table):
    """As good as the first m at as many target calls, it is worse at the same cost. Catches: passes not counted."""
    curve = curve_of("first", CONFIGURATIONS)
    assert set(curve) == {"target-only", "anchor-only", "draft-only", *(f"first@{m}" for m in range(2, 9))}
    cost = cost_with(pass_weights(PlanRequest()))
    assert against_curve(table, "reward-min@0", curve, target_calls, QUALITY).side == 0
    assert against_curve(table, "reward-min@0", curve, cost, QUALITY).high < -0.5


def test_a_block_of_the_target_alone_costs_one():
    """Catches: a weight of another pass, or of another unit."""
    weights = pass_weights(PlanRequest())
    block = {"target_denoising": 4, "target_context": 1, "encodes": 1, "decodes": 1}
    assert cost_with(weights)({"passes": block}) == pytest.approx(1)
    step = step_seconds(PlanRequest(), fp8=False)
    draft = {"drafter_denoising": 4, "drafter_context": 1, "encodes": 1, "decodes": 1, "scores": 12}
    expected = (step["drafter"] + step["decode"] + step["score"]) / (step["target"] + step["decode"])
    assert cost_with(weights)({"passes": draft}) == pytest.approx(expected)


# --- every route


def routes_of(prompts: int, quality_of) -> tuple[Plan, list]:
    """Rows of every route of four blocks; `quality_of`: by number of the prompt, seed and script."""
    names = tuple(f"prompt {i}" for i in range(prompts))
    plan = Plan(prompts=names, seeds=(1, 2), configurations=every_route(4), blocks=4, gains=False)
    rows = [
        {
            "configuration": c.name,
            "prompt": prompt,
            "seed": seed,
            "metrics": {"quality": quality_of(i, seed, c.router.script)},
        }
        for c in plan.configurations
        for i, prompt in enumerate(names)
        for seed in plan.seeds
    ]
    return plan, rows


def test_hindsight_gains_over_the_first_m_exactly_what_was_put_in():
    """A target call gains 1 dB, in odd prompts 3; at the last block 0.5 more. Catches: a subset of other blocks."""
    plan, rows = routes_of(
        20, lambda i, seed, script: script.count("t") * (3 if i % 2 else 1) + 0.5 * (script[3] == "t")
    )
    room = {at["calls"]: at for at in room_above(rows, plan, "quality")}
    assert set(room) == {1, 2, 3, 4}
    two = room[2]
    assert two["first"].value == pytest.approx(4.0)
    assert two["random"].value == pytest.approx(4.0 + 0.5 / 3)
    assert two["best_minus_first"].value == two["fixed_minus_first"].value == pytest.approx(0.5)
    # At a mean of 2.5 calls, the odd prompts have all four and the even ones one.
    assert two["uneven_first_minus_first"].value > 0.5
    assert two["uneven_minus_first"].value >= two["uneven_first_minus_first"].value
    assert room[1]["best_minus_first"].value == room[4]["best_minus_first"].value == 0


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_what_hindsight_gains_does_not_hang_on_the_unit_of_the_metric(unit):
    """Catches: prices in decibels, at which a score from 0 to 100 seemed to gain with a single call."""
    draw = np.random.default_rng(0)
    plan, rows = routes_of(12, lambda i, seed, script: script.count("t") * (1 + i % 3) + draw.normal())
    others = [{**row, "metrics": {"quality": row["metrics"]["quality"] * unit}} for row in rows]
    for name in ("uneven_first_minus_first", "uneven_minus_first"):
        pairs = zip(*(room_above(found, plan, "quality") for found in (rows, others)), strict=True)
        gains = [(dB[name].value, other[name].value / unit) for dB, other in pairs]
        assert gains[0] == pytest.approx((0, 0), abs=1e-9), "one call can only be the first block's"
        assert all(dB == pytest.approx(other) for dB, other in gains)


def test_calls_that_no_video_is_better_with_are_left_over():
    """A second call costs quality, so hindsight makes one of however many there are."""
    plan, rows = routes_of(12, lambda i, seed, script: -script.count("t"))
    assert [at["uneven_minus_first"].value for at in room_above(rows, plan, "quality")] == [0, 1, 2, 3]


def test_a_fixed_set_is_chosen_without_the_prompt_it_is_tried_on():
    """Noise alone: in its own prompts the best set would gain, chosen on others it does not."""
    draw = np.random.default_rng(0)
    plan, rows = routes_of(40, lambda *_: draw.normal())
    two = room_above(rows, plan, "quality")[1]
    assert two["best_minus_first"].low > 0.5
    assert two["fixed_minus_first"].low < 0 < two["fixed_minus_first"].high


def test_without_every_route_there_is_no_room_to_speak_of():
    plan, rows = routes_of(2, lambda *_: 0.0)
    some = replace(plan, configurations=plan.configurations[:-1])
    assert room_above(rows, some, "quality") == []


# --- classes of prompts


def test_classes_are_read_from_the_lines_of_a_file():
    lines = ["[animals] a dog runs", "a car", "[ two words ]  a [red] ball", "[] x", "[open a box"]
    assert read_classes(lines) == {
        "a dog runs": "animals", "a car": None, "a [red] ball": "two words", "[] x": None, "[open a box": None,
    }  # fmt: skip


def test_acceptance_is_told_by_class():
    plan = made_up_plan(12)
    classes = {prompt: "even" if i % 2 == 0 else "odd" for i, prompt in enumerate(plan.prompts)}
    rows = made_up_rows(plan)
    found = by_class(rows, replace(plan, classes=classes), "quality")
    assert [(of["class"], of["prompts"]) for of in found] == [("even", 6), ("odd", 6)]
    for of, wanted in zip(found, ("even", "odd"), strict=True):
        own = [r for r in rows if r["configuration"] == "reward-min@0" and classes[r["prompt"]] == wanted]
        share = np.mean([np.mean(row["accepted"]) for row in own])
        assert of["draft_share"]["reward-min@0"]["value"] == pytest.approx(share)
    assert by_class(rows, plan, "quality") == []


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
