"""What a share of target-only's cost buys, and what the plan says of routes that need no scores."""

from dataclasses import replace

import pytest

from sdvg_core.causal_wan.presets import get_preset
from sdvg_core.cli import main
from sdvg_core.engine.restyle import read_strength
from sdvg_core.engine.router import ROUTER_PRESETS, RouterConfig
from sdvg_core.errors import BadInput
from sdvg_core.plan.budget import afford, handover_of, spend
from sdvg_core.plan.choose import plan
from sdvg_core.plan.rates import H100
from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.work import block_operations, clip_seconds, context_operations, step_seconds

FULL, KREA = PlanRequest(), get_preset("krea-14b")


def seconds(router: RouterConfig, request: PlanRequest = FULL) -> float:
    """By the plan itself, which asks the router for every block."""
    return plan(10_000, replace(request, router=router)).seconds.video


TARGET_ONLY = seconds(RouterConfig(policy="always-target"))


@pytest.mark.parametrize("budget", [0.37, 0.4, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0])
def test_a_budget_is_kept_and_the_next_route_would_break_it(budget):
    """Catches: a share of another total, a count of blocks that is one off, a handover that is counted as whole."""
    router, note = spend(budget, RouterConfig(), FULL)
    assert router.policy == "first"
    share = seconds(router) / TARGET_ONLY
    assert note.endswith(f"Predicted: {share:.2f}.")
    assert share <= budget
    if router.forced_blocks < 9:
        more = replace(router, forced_blocks=router.forced_blocks + 1, handover=2)
    elif router.handover:
        more = replace(router, handover=router.handover - 1)
    else:
        assert budget == 1.0
        return
    assert seconds(more) / TARGET_ONLY > budget


@pytest.mark.parametrize(
    "whole, given, start", [(0, 0, 0), (3, 0, 0), (3, 2, 0), (20, 0, 0), (1, 7, 7), (3, 7, 7), (0, 7, 7), (3, 7, 5)]
)
def test_a_budget_counts_blocks_that_are_never_handed_over_as_whole(whole, given, start):
    """Catches: a route that costs more than its budget, because its first blocks were counted as handed over.

    `start`: where the route begins, after a clip given as pixels. Catches a clip's blocks counted as the route's,
    or the first new one at the price of a clip's first.
    """
    request = replace(FULL, given_blocks=given)
    alone = seconds(RouterConfig(policy="always-target"), request)
    router, note = spend(0.6, RouterConfig(whole_blocks=whole, route_start=start), request)
    assert (router.whole_blocks, router.route_start) == (whole, start)
    assert 1 < router.forced_blocks - (given - start) < 9, "blocks of this run are bought"
    assert note.endswith(f"Predicted: {seconds(router, request) / alone:.2f}.")


def test_the_whole_budget_is_target_only_and_half_of_the_steps_come_first():
    assert spend(1.0, RouterConfig(), FULL)[0] == RouterConfig(policy="first", forced_blocks=9)
    assert spend(0.52, RouterConfig(), FULL)[0] == ROUTER_PRESETS["careful"]
    assert spend(0.4, RouterConfig(bail_out=3), FULL)[0].bail_out == 3, "other settings stay"
    routes = [spend(share / 100, RouterConfig(), FULL)[0] for share in range(36, 101)]
    assert [(r.forced_blocks, r.handover) for r in dict.fromkeys(routes)] == [
        *((1, 0), *((m, 2) for m in range(2, 10)), (9, 1), (9, 0))
    ]


def test_a_budget_below_the_cheapest_route_takes_that_and_says_so():
    (below, note), (router, usual) = (spend(budget, RouterConfig(), FULL) for budget in (0.1, 0.36))
    assert below == router == ROUTER_PRESETS["fast"]
    assert note.endswith("Predicted: 0.35. It is below the cheapest route, which was taken.")
    assert "below" not in usual
    for odd in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(BadInput, match="not a share"):
            spend(odd, RouterConfig(), FULL)


def test_models_with_two_schedules_hand_nothing_over():
    two_passes = replace(get_preset("krea-14b"), schedule="1000,625")
    request = replace(FULL, target_preset=two_passes)
    assert (handover_of(FULL), handover_of(request)) == (2, 0)
    assert spend(0.8, RouterConfig(), request)[0].handover == 0
    assert step_seconds(request, fp8=False)["target"] < 0.6 * step_seconds(FULL, fp8=False)["target"]


def test_a_machine_does_not_change_what_a_budget_buys():
    """A shared workflow asks for the same video everywhere, so the memory at hand must not matter."""
    slow = replace(FULL, rates=replace(H100, vae=H100.vae / 9))
    apart = replace(FULL, side=True)
    for other in (slow, apart):
        assert spend(0.6, RouterConfig(), FULL) == spend(0.6, RouterConfig(), other)


def test_a_plan_refuses_a_handover_without_a_step_left_and_more_blocks_than_a_video_can_have():
    """Catches: a target with no step at all, or with less, counted as a saving."""
    with pytest.raises(BadInput, match="handover is 4 of 4 denoising steps"):
        replace(FULL, router=RouterConfig(handover=4))
    with pytest.raises(BadInput, match="handover is 2 of 2 denoising steps"):
        replace(FULL, router=ROUTER_PRESETS["balanced"], target_preset=replace(KREA, schedule="two-step"))
    with pytest.raises(BadInput, match="give 1 to 100000"):
        replace(FULL, blocks=10**9)
    assert plan(80, replace(FULL, blocks=100_000)).seconds.video > 100_000


# --- what the plan says of them


def test_a_handover_moves_its_steps_from_the_target_to_the_drafter():
    handed = plan(80, replace(FULL, router=ROUTER_PRESETS["balanced"]))
    step, three = step_seconds(FULL, fp8=False), replace(KREA, schedule="1000,750,500")
    one_pass = step["target"] - step_seconds(replace(FULL, target_preset=three), fp8=False)["target"]
    whole = step["target"] + step["decode"]
    begun = step_seconds(handed.request, fp8=False)["drafter begins"]
    assert handed.seconds.by_target == pytest.approx(whole - 2 * one_pass + begun)
    assert begun < step["drafter"]
    rejected = plan(80, replace(FULL, router=RouterConfig(handover=2))).seconds.rejected
    assert rejected == pytest.approx(plan(80, FULL).seconds.rejected - 2 * one_pass)


@pytest.mark.parametrize("word, skip", [("strong", 1), ("medium", 2), ("light", 3)])
def test_a_restyled_clip_saves_the_passes_that_it_stands_in_for(word, skip):
    """Of both models; what it stands in for is not handed over, and encoding it is counted."""
    step = step_seconds(FULL, fp8=False)
    for policy in ("always-target", "first"):
        route = replace(FULL, router=RouterConfig(policy=policy, forced_blocks=0))
        role = "target" if policy == "always-target" else "drafter"
        first = step[f"first {role}"] / (route.steps_of(role))  # it has no context
        once = block_operations(*FULL.models[role], 1, 1560) - context_operations(*FULL.models[role], 1560)
        saved = skip * (first + (FULL.blocks - 1) * once / FULL.rates.transformer)
        restyled = replace(route, strength=read_strength(word))
        more = clip_seconds(restyled) - saved
        assert plan(80, restyled).seconds.video == pytest.approx(plan(80, route).seconds.video + more)
    handed = replace(FULL, router=ROUTER_PRESETS["balanced"], strength=read_strength(word))
    assert handed.handover == max(0, 2 - skip)
    alone = step_seconds(handed, fp8=False)
    begun = alone["drafter begins"] if skip < 2 else 0.0
    assert plan(80, handed).seconds.by_target == pytest.approx(begun + alone["target finishes"] + alone["decode"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--strength", "medium"], ["s of it encoding the clip, policy first."]),
        (["--strength", "little"], ["'little' is no strength"]),
        (["--preset", "balanced", "--json"], ['"handover": 2']),
        (["--budget", "0.52"], ["the target makes the first 4 blocks", "drafted 2.8, by the target 7.1"]),
        (["--budget", "0.5", "--preset", "fast"], ["leave one of them out"]),
    ],
)
def test_the_command_plans_restyled_clips_presets_and_budgets(more, says, capsys):
    code, said = main(["plan", "--vram", "80", *more]), capsys.readouterr()
    assert all(words in (said.err if code else said.out) for words in says)


def test_plan_speaks_of_the_route_that_generate_takes_by_default(capsys):
    said = []
    for more in ([], ["--preset", "balanced"], ["--preset", "paper"]):
        assert main(["plan", "--vram", "80", *more, "--size", "square"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert "624x624" in said[0]


@pytest.mark.parametrize(
    "budget, stated",
    [(0.5, [0, 0]), (0.5, [6, 0]), (0.5, [1, 0, 0]), (0.6, [4, 0, 9, 0])],
)
def test_what_prompts_state_and_what_is_left_come_to_the_budget(budget, stated):
    """By the plan itself. Catches: a budget that every video gets anew; a fraction of a block that is lost."""
    mean, handover = afford(budget, RouterConfig(), FULL, stated)
    alone = seconds(RouterConfig(policy="always-target"))

    def share(m: int) -> float:
        return seconds(RouterConfig(policy="first", forced_blocks=m, handover=handover)) / alone

    low = int(mean)
    free = share(low) + (mean - low) * (share(low + 1) - share(low)) if mean % 1 else share(low)
    total = sum(share(m) if m else free for m in stated) / len(stated)
    assert total == pytest.approx(budget)


def test_a_mean_over_no_stated_prompt_is_what_the_same_budget_buys_of_whole_blocks():
    for budget in (0.36, 0.5, 0.7, 0.95, 1.0):
        (bought, _), (mean, handover) = (
            spend(budget, RouterConfig(), FULL),
            afford(budget, RouterConfig(), FULL, [0]),
        )
        assert bought.forced_blocks == int(mean + 1e-9)
        assert bought.forced_blocks == 1 or bought.handover == handover


def test_prompts_that_state_more_than_the_budget_are_refused():
    with pytest.raises(BadInput, match="take more than the budget"):
        afford(0.4, RouterConfig(), FULL, [9, 0])
