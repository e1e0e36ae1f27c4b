"""How many blocks the target may make for a share of what target-only costs.

Costs are predicted with the rates of one device for all machines, so that a budget asks for the same video
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..causal_wan.schedule import get_schedule
from ..engine.router import RouterConfig
from ..errors import BadInput
from .choose import BlockSeconds, seconds_without_copying
from .rates import A6000
from .request import PlanRequest

Route = tuple[int, int]
"""How many blocks the target makes, and how many steps of one are handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a budget buys: a router, and its predicted cost as a share of target-only's."""

    router: RouterConfig
    share: float
    note: str


def spend(budget: float, router: RouterConfig, request: PlanRequest) -> Spending:
    """Return the router that makes most of a budget: the run's first blocks by the target, all others drafted.

    `budget`: a share of target-only's predicted seconds. `router`: keeps its other settings. `request`: the run.
    Of the routes from the cheapest to target-only, the last one within the budget is chosen: one more block by the
    target each time, half of its steps handed over; then the same with fewer steps handed over, down to none.
    A budget below the cheapest route takes that one, and the note says so.
    """
    check_budget(budget)
    shares = _shares(request, router.whole_blocks)
    least = min(shares, key=lambda route: shares[route])
    blocks, steps = [least, *(route for route, share in shares.items() if share <= budget)][-1]
    return Spending(
        router=replace(router, policy="first", forced_blocks=request.given_blocks + blocks, handover=steps),
        share=shares[blocks, steps],
        note=_note(budget, blocks, request.blocks, steps, shares[blocks, steps]),
    )


def afford(budget: float, router: RouterConfig, request: PlanRequest, stated: Sequence[int]) -> tuple[float, int]:
    """Return how many blocks the target may make of a video, on the mean, and how many steps are handed over.

    `budget`: as in `spend`, on the mean over all videos. `stated`: for each of them, how many blocks the target
    makes, if its prompt states it; 0 for those that share what is left. Raises `BadInput` if that is too little.
    """
    shares = _shares(request, router.whole_blocks)
    cost: dict[int, float] = {}
    for (blocks, _), share in shares.items():
        cost.setdefault(blocks, share)  # the first route of so many blocks hands over most
    left = (budget * len(stated) - sum(cost[m] for m in stated if m)) / max(stated.count(0), 1)
    if any(stated) and left < min(cost.values()):
        raise BadInput("the first blocks that prompts state take more than the budget; raise it, or state fewer")
    mean = float(np.interp(left, [*cost.values()], [*cost]))
    # All blocks the target's: what is left buys steps of its own.
    whole = mean == request.blocks
    every = [steps for (blocks, steps), share in shares.items() if whole and blocks == mean and share <= left]
    return mean, min(every, default=handover_of(request))


def check_budget(budget: float) -> None:
    """Raise `BadInput` unless it is a share of target-only's cost."""
    if not (math.isfinite(budget) and 0 < budget <= 1):
        cure = f"for {budget:g} % write {budget / 100:g}" if 1 < budget <= 100 else "0.5 is usual"
        raise BadInput(f"a budget must be a share of target-only's cost up to 1, but is {budget:g}; {cure}")


def _routes(request: PlanRequest, half: int) -> tuple[Route, ...]:
    """Return routes from the cheapest to target-only."""
    # The clip's first block is the target's, and never handed over.
    whole = 0 if request.given_blocks else 1
    rising = [(blocks, half) for blocks in range(whole + 1, request.blocks + 1)]
    every = [(request.blocks, steps) for steps in reversed(range(half))] if request.blocks > whole else []
    return ((whole, 0), *rising, *every)


def handover_of(request: PlanRequest) -> int:
    """Return half of the denoising steps; 0 if the models have two schedules, and nothing can be handed over."""
    drafter, target = (get_schedule(preset.schedule) for _, preset in request.models.values())
    return request.steps_of("target") // 2 if drafter == target else 0


def _shares(request: PlanRequest, whole_blocks: int) -> dict[Route, float]:
    """Return what each route costs, as a share of target-only."""
    # Neither a machine's speed nor its memory may change the video: one device's rates, and nothing is copied.
    request = replace(request, rates=A6000, side=False)
    half = handover_of(request)
    routers = {steps: RouterConfig(handover=steps) for steps in range(half + 1)}
    costs = {steps: seconds_without_copying(replace(request, router=of)) for steps, of in routers.items()}
    whole = max(whole_blocks - request.given_blocks, 0)
    alone = _video(costs[0], costs[0], request, request.blocks, 0)
    return {
        (m, k): _video(costs[k], costs[0], request, m, min(m, whole)) / alone for m, k in _routes(request, half)
    }


def _video(seconds: BlockSeconds, plain: BlockSeconds, request: PlanRequest, by_target: int, whole: int) -> float:
    """Return the seconds of a video whose first `by_target` blocks are the target's.

    `plain`: of blocks of which nothing is handed over, as of the first `whole` blocks.
    """
    first = 1 if by_target and not request.given_blocks else 0
    whole = max(whole - first, 0)
    handed = (by_target - first - whole) * seconds.by_target
    later = handed + whole * plain.by_target + (request.blocks - by_target) * seconds.unscored
    # Every route's blocks are decoded for the video, whoever made them.
    return first * seconds.first + later + request.blocks * seconds.deliver


def _note(budget: float, blocks: int, of: int, handover: int, share: float) -> str:
    what = {0: "no block", 1: "the first block"}.get(blocks, f"the first {blocks} blocks")
    steps = f", with {handover} steps of a block handed over" if handover else ""
    below = " It is below the cheapest route, which was taken." if share > budget else ""
    return (
        f"A budget of {budget:g} of target-only's cost: of {of} blocks the target makes {what}{steps}. "
        f"Predicted: {share:.2f}.{below}"
    )
