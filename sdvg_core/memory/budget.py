"""How many blocks the target may make for a share of what target-only costs, by the weights in `counts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..causal_wan.presets import Preset
from ..engine.router import RouterConfig
from .counts import context_passes, pass_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedRun:
    """The run that a budget is for: `presets` of both models by role, its new blocks, and those it continues."""

    presets: Mapping[str, Preset]
    blocks: int
    given_blocks: int = 0

    @property
    def most_handover(self) -> int:
        """Half of the denoising steps, at most a draft's; 0 if two schedules allow no handover."""
        drafter, target = (self.presets[role] for role in ("drafter", "target"))
        return min(len(target.steps) // 2, drafter.steps_made) if drafter.steps == target.steps else 0


def route_for_budget(budget: float, router: RouterConfig, run: BudgetedRun) -> tuple[RouterConfig, str]:
    """Return the router that uses most of a budget for first blocks by the target, and a note that says so.

    `budget`: a share of target-only's cost. `router`: keeps its other settings, and its route begins where they
    say. The last route within the budget is chosen, from the cheapest to target-only: one more block by the target
    each time, half of its steps handed over; then the same with fewer steps handed over, down to none.
    A budget below the cheapest route takes that one, and the note says so.
    """
    shares = route_shares(run, router)
    cheapest = min(shares, key=lambda route: shares[route])
    blocks, steps = [cheapest, *(route for route, share in shares.items() if share <= budget)][-1]
    first_blocks = router.place(run.given_blocks) + blocks
    chosen = replace(router, policy="first", forced_blocks=first_blocks, handover=steps)
    what = {0: "no block", 1: "the first block"}.get(blocks, f"the first {blocks} blocks")
    handed = f", with {steps} step{'s' * (steps > 1)} of a block handed over" if steps else ""
    share = shares[blocks, steps]
    below = " No route costs less here, so that one was taken." if share > budget else ""
    return chosen, (
        f"A budget of {budget:g} of target-only's cost: of {run.blocks} blocks the target makes {what}{handed}."
        f" That is {share:.2f}.{below}"
    )


def route_shares(run: BudgetedRun, router: RouterConfig) -> dict[tuple[int, int], float]:
    """Return the costs of all routes, from the cheapest to target-only, as shares of that.

    A route is how many blocks the target makes, and how many steps of one are handed over.
    """
    half = run.most_handover
    counted = router.place(run.given_blocks)
    # The route's first block is the target's, and never handed over.
    first = 0 if counted else 1
    routes = [(first, 0), *((blocks, half) for blocks in range(first + 1, run.blocks + 1))]
    if run.blocks > first:
        routes += [(run.blocks, steps) for steps in reversed(range(half))]
    prices = {steps: _block_prices(run, steps) for steps in range(half + 1)}
    whole = "whole" if run.given_blocks else "opening"
    costs = {
        (blocks, steps): math.fsum(
            (
                first * prices[steps][whole],
                (blocks - first) * prices[steps]["handed over"],
                (run.blocks - blocks) * prices[steps]["drafted"],
            )
        )
        for blocks, steps in routes
    }
    return {route: cost / costs[run.blocks, 0] for route, cost in costs.items()}


def _block_prices(run: BudgetedRun, handover: int) -> dict[str, float]:
    """Return the cost of a block of each kind, in target blocks; `opening` is the clip's first one."""
    drafter, target = (run.presets[role] for role in ("drafter", "target"))
    steps = len(target.steps)
    return {
        "opening": _block_cost(run, 0, len(target.first_steps), opening=True),
        "whole": _block_cost(run, 0, steps),
        "handed over": _block_cost(run, handover, steps - handover),
        "drafted": _block_cost(run, drafter.steps_made, 0),
    }


def _block_cost(run: BudgetedRun, drafter: int, target: int, *, opening: bool = False) -> float:
    """Return the cost of a block with so many denoising steps of either model, decoded once, in target blocks.

    `opening`: it is the clip's first one, without context. A drafter with smaller blocks leaves only the last of
    them unfinished.
    """
    weights = pass_weights(run.presets)
    cost = weights["decodes"]
    anchors = 0
    for role, steps in (("drafter", drafter), ("target", target)):
        if not steps:
            continue
        preset = run.presets[role]
        earlier = run.presets["target"].block_frames // preset.block_frames - 1
        cost += (earlier * preset.steps_made + steps) * weights[f"{role}_denoising"]
        if not opening:
            cost += (earlier + 1) * context_passes(preset) * weights[f"{role}_context"]
            anchors = max(anchors, preset.anchor_horizon)
    return cost + (weights["encodes"] if anchors else 0.0)
