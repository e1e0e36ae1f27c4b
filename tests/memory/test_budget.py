"""What a share of target-only's cost buys, and the weights of passes against the videos that were measured."""

from dataclasses import replace
from functools import cache

import pytest
from tiny import make_engine, make_framewise, run

from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.engine.router import ROUTER_PRESETS, RouterConfig
from sdvg_core.memory.budget import WEIGHTS, BudgetedRun, pass_weights, route_for_budget
from sdvg_core.report.run_report import RunReport

PRESETS = {"drafter": get_preset("self-forcing-1.3b"), "target": get_preset("krea-14b")}
FULL = BudgetedRun(presets=PRESETS, blocks=9)
TARGET_ONLY = RouterConfig(policy="always-target")


@cache
def cost(router: RouterConfig, *, given: int = 0, start: int = 0) -> float:
    """Count the passes of nine new blocks that an engine of tiny models makes, and weigh them."""
    engine = make_engine(schedule="four-step")
    router = replace(router, route_start=start)
    emitted = run(engine, router, blocks=given + 9)[given:]
    report = RunReport(settings={}, versions={}, blocks=tuple(one.record for one in emitted), fps=1.0)
    return sum(WEIGHTS[name] * count for name, count in report.passes.items())


def first(blocks: int, handover: int = 0) -> RouterConfig:
    return RouterConfig(policy="first", forced_blocks=blocks, handover=handover)


# --- the weights


@pytest.mark.parametrize(
    ("passes", "seconds"),
    [
        ((0, 0, 36, 8, 9, 0), 12.38),
        ((32, 8, 4, 0, 9, 0), 4.02),
        ((30, 8, 6, 1, 9, 0), 4.69),
        ((32, 8, 8, 1, 10, 96), 5.86),
        ((32, 8, 12, 2, 11, 96), 7.30),
    ],
    ids=["target-only", "anchor-only", "first=2+2", "r=1", "r=2"],
)
def test_the_weights_give_back_the_videos_that_were_measured_on_an_h200(passes, seconds):
    """As shares of target-only: a budget and a study compare routes."""
    names = ("drafter_denoising", "drafter_context", "target_denoising", "target_context", "decodes", "scores")

    def weighed(counts: tuple[int, ...]) -> float:
        return (
            sum(WEIGHTS[name] * count for name, count in zip(names, counts, strict=True)) + 7 * WEIGHTS["encodes"]
        )

    assert weighed(passes) / weighed((0, 0, 36, 8, 9, 0)) == pytest.approx(seconds / 12.38, abs=0.01)


def test_the_weights_are_in_target_blocks_and_follow_the_frames_of_a_pass():
    assert cost(TARGET_ONLY) == pytest.approx(9, abs=0.2), "the first block has no context"
    framewise = pass_weights({"drafter": get_preset("causal-forcing-framewise"), "target": PRESETS["target"]})
    assert pass_weights(PRESETS) == pytest.approx(dict(WEIGHTS))
    ratios = {name: framewise[name] / weight for name, weight in WEIGHTS.items()}
    thirds = {name for name, ratio in ratios.items() if ratio == pytest.approx(1 / 3)}
    assert thirds == {"drafter_denoising", "drafter_context"}


# --- what a budget buys


@pytest.mark.parametrize("budget", [0.34, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_a_budget_is_kept_and_the_next_route_would_break_it(budget):
    """By the passes of a run. Catches: a count of blocks that is one off, a handover that is counted as whole."""
    router, note = route_for_budget(budget, RouterConfig(), FULL)
    whole = cost(TARGET_ONLY)
    share = cost(first(router.forced_blocks, router.handover)) / whole
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(share, abs=0.006)
    assert share <= budget + 0.001
    if router.forced_blocks < 9:
        assert cost(first(router.forced_blocks + 1, 2)) / whole > budget
    elif router.handover:
        assert cost(first(9, router.handover - 1)) / whole > budget


@pytest.mark.parametrize("given, start", [(0, 0), (2, 0), (7, 7), (7, 5)])
def test_a_budget_counts_the_block_that_is_never_handed_over_as_whole(given, start):
    """Catches: a route that costs more than its budget, because its first block was counted as handed over.

    `start`: where the route begins, after a clip given as pixels. Catches a clip's blocks counted as the route's,
    or the first new one at the price of a clip's first.
    """
    router, note = route_for_budget(0.6, RouterConfig(route_start=start), replace(FULL, given_blocks=given))
    assert router.route_start == start
    assert 1 < router.forced_blocks - (given - start) < 9, "blocks of this run are bought"
    share = cost(router, given=given, start=start) / cost(TARGET_ONLY, given=given)
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(share, abs=0.006)


def test_the_whole_budget_is_target_only_and_half_of_the_steps_come_first():
    assert route_for_budget(1.0, RouterConfig(), FULL)[0] == first(9)
    assert route_for_budget(0.5, RouterConfig(), FULL)[0] == ROUTER_PRESETS["careful"]
    assert route_for_budget(0.4, RouterConfig(bail_out=3), FULL)[0].bail_out == 3, "other settings stay"
    routes = [route_for_budget(share / 100, RouterConfig(), FULL)[0] for share in range(33, 101)]
    assert [(route.forced_blocks, route.handover) for route in dict.fromkeys(routes)] == [
        *((1, 0), *((m, 2) for m in range(2, 10)), (9, 1), (9, 0))
    ]


def test_a_budget_below_the_cheapest_route_takes_that_and_says_so():
    below, note = route_for_budget(0.1, RouterConfig(), FULL)
    enough, usual = route_for_budget(0.34, RouterConfig(), FULL)
    assert below == enough == ROUTER_PRESETS["fast"]
    assert note.endswith("That is 0.33. No route costs less here, so that one was taken.")
    assert "below" not in usual


def test_models_with_two_schedules_hand_nothing_over():
    two = replace(FULL, presets=PRESETS | {"target": replace(PRESETS["target"], schedule="1000,625")})
    assert (FULL.most_handover, two.most_handover) == (2, 0)
    assert route_for_budget(0.8, RouterConfig(), two)[0].handover == 0


def test_a_drafter_of_single_frames_finishes_all_of_a_block_but_the_last_that_it_hands_over():
    """By the passes of a run, to a hundredth: its cache also takes in the blocks that are not its own."""
    single = get_preset("causal-forcing-framewise")
    budgeted = replace(FULL, presets={"drafter": single, "target": PRESETS["target"]})
    router, note = route_for_budget(0.6, RouterConfig(), budgeted)
    weights = pass_weights(budgeted.presets)
    shares = []
    for route in (router, TARGET_ONLY):
        drafter = make_framewise("incremental", schedule="four-step", window=21, sink=0).drafter
        engine = replace(make_engine(schedule="four-step"), drafter=drafter)
        report = RunReport(
            settings={}, versions={}, blocks=tuple(one.record for one in run(engine, route)), fps=1.0
        )
        shares.append(sum(weights[name] * count for name, count in report.passes.items()))
    assert float(note.split()[-1].rstrip(".")) == pytest.approx(shares[0] / shares[1], abs=0.01)
