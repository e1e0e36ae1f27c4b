"""How many blocks the target may make for a share of what target-only costs.

Costs are predicted with the rates of one device for all machines, so that a budget asks for the same video
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..engine.plan import most_handover
from ..engine.router import RouterConfig
from ..errors import BadInput
from .choose import BlockSeconds, block_seconds
from .rates import A6000
from .request import PlanRequest


def spend(budget: float, router: RouterConfig, request: PlanRequest) -> tuple[RouterConfig, str]:
    """Return the router that uses most of a budget for first blocks by the target, and a note that says so.

    `budget`: a share of target-only's predicted seconds. `router`: keeps its other settings, and its route begins
    where they say. `request`: the run.
    The last route within the budget is chosen, from the cheapest to target-only: one more block by the target
    each time, half of its steps handed over; then the same with fewer steps handed over, down to none.
    A budget below the cheapest route takes that one, and the note says so.
    """
    check_budget(budget)
    counted = router.place(request.given_blocks)
    shares = _shares(request, router)
    least = min(shares, key=lambda route: shares[route])
    blocks, steps = [least, *(route for route, share in shares.items() if share <= budget)][-1]
    bought = replace(router, policy="first", forced_blocks=counted + blocks, handover=steps)
    what = {0: "no block", 1: "the first block"}.get(blocks, f"the first {blocks} blocks")
    handed = f", with {steps} steps of a block handed over" if steps else ""
    share = shares[blocks, steps]
    below = " It is below the cheapest route, which was taken." if share > budget else ""
    return bought, (
        f"A budget of {budget:g} of target-only's cost: of {request.blocks} blocks the target makes {what}{handed}."
        f" Predicted: {share:.2f}.{below}"
    )


def afford(budget: float, router: RouterConfig, request: PlanRequest, stated: Sequence[int]) -> tuple[float, int]:
    """Return how many blocks the target may make of a video, on average, and how many steps are handed over.

    `budget`: as in `spend`, on average over all videos. `stated`: for each of them, how many blocks the target
    makes, if its prompt states it; 0 for those that share what is left. Raises `BadInput` if that is too little.
    """
    shares = _shares(request, router)
    cost: dict[int, float] = {}
    for (blocks, _), share in shares.items():
        cost.setdefault(blocks, share)  # the first route of so many blocks hands over most
    left = (budget * len(stated) - sum(cost[m] for m in stated if m)) / max(stated.count(0), 1)
    if any(stated) and left < min(cost.values()):
        raise BadInput("the first blocks that prompts state take more than the budget; raise it, or state fewer")
    mean = float(np.interp(left, [*cost.values()], [*cost]))
    # If the target makes all blocks, what is left buys steps of its own.
    every = [steps for (of, steps), share in shares.items() if of == mean == request.blocks and share <= left]
    return mean, min(every, default=handover_of(request))


def check_budget(budget: float) -> None:
    """Raise `BadInput` unless it is a share of target-only's cost."""
    if not (math.isfinite(budget) and 0 < budget <= 1):
        cure = f"for {budget:g} % write {budget / 100:g}" if 1 < budget <= 100 else "0.5 is usual"
        raise BadInput(f"the budget is {budget:g}, not a share of target-only's cost up to 1; {cure}")


def handover_of(request: PlanRequest) -> int:
    """Return half of the denoising steps; 0 if the models have two schedules, and nothing can be handed over."""
    return most_handover(*([step.timestep for step in preset.steps] for _, preset in request.models.values()))


def _shares(request: PlanRequest, router: RouterConfig) -> dict[tuple[int, int], float]:
    """Return the costs of all routes, from the cheapest to target-only, as shares of that.

    A route is how many blocks the target makes, and how many steps of one are handed over.
    """
    # Neither a machine's speed nor its memory may change the video: one device's rates, and nothing is copied.
    request = replace(request, rates=A6000, side=False)
    half = handover_of(request)
    routers = {steps: RouterConfig(handover=steps) for steps in range(half + 1)}
    costs = {steps: block_seconds(replace(request, router=of)) for steps, of in routers.items()}
    # The route's first block is the target's, and never handed over.
    counted = router.place(request.given_blocks)
    first = 0 if counted else 1
    rising = [(blocks, half) for blocks in range(first + 1, request.blocks + 1)]
    every = [(request.blocks, steps) for steps in reversed(range(half))] if request.blocks > first else []
    whole = max(router.whole_blocks - counted, 0)
    seconds = {
        (m, k): _video(costs[k], costs[0], request, m, min(m, whole)) for m, k in ((first, 0), *rising, *every)
    }
    return {route: spent / seconds[request.blocks, 0] for route, spent in seconds.items()}


def _video(seconds: BlockSeconds, plain: BlockSeconds, request: PlanRequest, by_target: int, whole: int) -> float:
    """Return the seconds of a video whose first `by_target` blocks are the target's.

    `plain`: of blocks without a handover, such as the first `whole` ones.
    """
    first = 1 if by_target and not request.given_blocks else 0
    whole = max(whole - first, 0)
    handed = (by_target - first - whole) * seconds.by_target
    later = handed + whole * plain.by_target + (request.blocks - by_target) * seconds.unscored
    return first * seconds.first + later
