"""What a budget buys: the dearest route whose passes cost no more than a share of the target alone."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from sdvg_core.engine.inputs import BlockInputs
from sdvg_core.engine.speculate import EmittedBlock, speculate
from sdvg_core.engine.types import plan_spans
from sdvg_core.memory.budget import WEIGHTS, BudgetedRun, pass_weights, route_for_budget
from sdvg_core.report.run_report import RunReport
from sdvg_core.settings.context import get_preset
from sdvg_core.settings.route import ROUTE_PRESETS, Budget, First, Route, TargetOnly
from tests.support.tiny import PROMPT, make_engine, make_framewise, make_noise, planned_blocks, run

PRESETS = {"drafter": get_preset("self-forcing-1.3b"), "target": get_preset("krea-14b")}
NINE = BudgetedRun(presets=PRESETS, blocks=9)
TARGET_ONLY = Route(TargetOnly())


@cache
def cost(route: Route, *, given: int = 0, start: int = 0) -> float:
    """Count the passes of nine new blocks that an engine of tiny models makes, and weigh them.

    `given`: blocks before them. `start`: the first block of the route.
    """
    engine = make_engine(schedule="four-step")
    blocks = planned_blocks(plan_spans(given + 9, 3))
    blocks = tuple(replace(block, place=block.place - start) for block in blocks)
    emitted = list(speculate(engine, route, blocks, BlockInputs(make_noise(), lambda _: PROMPT)))
    return weighed(emitted[given:], WEIGHTS)


def weighed(emitted: list[EmittedBlock], weights: Mapping[str, float]) -> float:
    """Return what the passes of these blocks cost."""
    records = tuple(shown.record for shown in emitted)
    passes = RunReport(settings={}, versions={}, blocks=records, fps=1.0).passes
    return sum(weights[name] * count for name, count in passes.items())


def noted_share(note: str) -> float:
    """Return the share of the target alone that a note ends with."""
    return float(note.split()[-1].rstrip("."))


def first_blocks(blocks: int, handover: int) -> Route:
    return Route(First(blocks), handover=handover)


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
    ids=["target-only", "anchor-only", "two first", "one rejected", "two rejected"],
)
def test_weights_give_the_seconds_measured_on_h200(passes, seconds):
    """As shares of target-only: a budget and a study compare routes."""
    names = ("drafter_denoising", "drafter_context", "target_denoising", "target_context", "decodes", "scores")

    def weigh(counts: tuple[int, ...]) -> float:
        costs = [WEIGHTS[name] * count for name, count in zip(names, counts, strict=True)]
        return sum(costs) + 7 * WEIGHTS["encodes"]

    assert weigh(passes) / weigh((0, 0, 36, 8, 9, 0)) == pytest.approx(seconds / 12.38, abs=0.01)


def test_weights_are_in_blocks_of_the_target():
    """But for the first block, which has no context."""
    assert cost(TARGET_ONLY) == pytest.approx(9, abs=0.2)
    assert pass_weights(PRESETS) == pytest.approx(dict(WEIGHTS))


@pytest.mark.parametrize(
    ("role", "cheaper"),
    [
        ("drafter", {"drafter_denoising", "drafter_context"}),
        ("target", {"target_denoising", "target_context", "decodes"}),
    ],
)
def test_weights_follow_the_frames_of_a_pass(role, cheaper):
    """Catches: a pass over one latent frame, or its decode, counted as one over three."""
    framewise = pass_weights(PRESETS | {role: get_preset("causal-forcing-framewise")})
    ratios = {name: framewise[name] / weight for name, weight in WEIGHTS.items()}
    assert {name for name, ratio in ratios.items() if ratio == pytest.approx(1 / 3)} == cheaper


# --- what a budget buys


@pytest.mark.parametrize("budget", [0.34, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_budget_buys_the_dearest_route_within_it(budget):
    """By the passes of a run. Catches: a count of blocks that is one off, a handover that is counted as whole."""
    route, note = route_for_budget(Budget(budget), NINE)
    whole = cost(TARGET_ONLY)
    share = cost(route) / whole
    assert noted_share(note) == pytest.approx(share, abs=0.006)
    assert share <= budget + 0.001
    if route.policy.n < 9:
        assert cost(first_blocks(route.policy.n + 1, 2)) / whole > budget
    elif route.handover:
        assert cost(first_blocks(9, route.handover - 1)) / whole > budget


@pytest.mark.parametrize("given, start", [(0, 0), (2, 0), (7, 7), (7, 5)])
def test_budget_counts_a_first_block_as_whole(given, start):
    """Catches: a route that costs more than its budget, because its first block was counted as handed over.

    `start`: where the route begins, after a clip given as pixels. Catches a clip's blocks counted as the route's,
    or the first new one at the price of a clip's first.
    """
    after_clip = replace(NINE, given_blocks=given, route_blocks=given - start)
    route, note = route_for_budget(Budget(0.6), after_clip)
    assert 1 < route.policy.n - (given - start) < 9, "blocks of this run are bought"
    share = cost(route, given=given, start=start) / cost(TARGET_ONLY, given=given)
    assert noted_share(note) == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize(
    ("budget", "route"),
    [(1.0, Route(First(9))), (0.5, ROUTE_PRESETS["careful"]), (0.34, ROUTE_PRESETS["fast"])],
)
def test_budget_buys_the_published_routes(budget, route):
    assert route_for_budget(Budget(budget), NINE)[0] == route


def test_growing_budget_buys_blocks_before_whole_steps():
    """Catches: a first block whose handover is given up before the others are the target's."""
    routes = [route_for_budget(Budget(share / 100), NINE)[0] for share in range(33, 101)]
    bought = [(route.policy.n, route.handover) for route in dict.fromkeys(routes)]
    assert bought == [(1, 0), *((blocks, 2) for blocks in range(2, 10)), (9, 1), (9, 0)]


def test_budget_below_the_cheapest_route_is_noted():
    route, note = route_for_budget(Budget(0.1), NINE)
    assert route == ROUTE_PRESETS["fast"]
    assert "0.33" in note
    assert "No route costs less" in note
    _, note_of_enough = route_for_budget(Budget(0.34), NINE)
    assert "No route" not in note_of_enough


def test_models_with_two_schedules_hand_nothing_over():
    two_schedules = replace(NINE, presets=PRESETS | {"target": replace(PRESETS["target"], schedule="1000,625")})
    route, _ = route_for_budget(Budget(0.8), two_schedules)
    assert route.handover == 0
    usual, _ = route_for_budget(Budget(0.8), NINE)
    assert usual.handover == 2


def test_budget_of_a_framewise_drafter_is_kept():
    """By the passes of a run, to a hundredth: of a block that it hands over it finishes all frames but the last.

    Its cache also takes in the blocks that are not its own.
    """
    presets = {"drafter": get_preset("causal-forcing-framewise"), "target": PRESETS["target"]}
    bought, note = route_for_budget(Budget(0.6), replace(NINE, presets=presets))
    drafter = make_framewise("incremental", schedule="four-step", window=21, sink=0).drafter
    engine = replace(make_engine(schedule="four-step"), drafter=drafter)
    cost_bought, cost_whole = (
        weighed(run(engine, route), pass_weights(presets)) for route in (bought, TARGET_ONLY)
    )
    assert noted_share(note) == pytest.approx(cost_bought / cost_whole, abs=0.01)


def test_budget_counts_all_passes_over_a_window():
    """Of four latent frames there are two, by blocks of three; to two hundredths, as a clip's second block has one.

    Catches: the last frames of a window passed for nothing.
    """
    target = PRESETS["target"]
    wider = replace(target, context=replace(target.context, context_frames=4))
    bought, note = route_for_budget(Budget(0.4), replace(NINE, presets=PRESETS | {"target": wider}))
    engine = make_engine(schedule="four-step")
    engine = replace(engine, target=make_engine(schedule="four-step", frames=4).target)
    cost_bought, cost_whole = (weighed(run(engine, route), WEIGHTS) for route in (bought, TARGET_ONLY))
    assert noted_share(note) == pytest.approx(cost_bought / cost_whole, abs=0.02)
