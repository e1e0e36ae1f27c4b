"""Choose the route for a budget: a share of the target-only cost, by one measured table of weights.

Counted operations would not predict seconds: a decoder reaches a quarter of a GPU's peak rate, a transformer half.
The table is of one pair on one GPU, so that a budget gives the same video on every device and with every decoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..settings.context import Preset, Recompute
from ..settings.route import Budget, First, Route

WEIGHTED_FRAMES = 3
"""Latent frames of a pass and a decode in `WEIGHTS`."""
WEIGHTS: Mapping[str, float] = {
    "drafter_denoising": 0.0301,
    "drafter_context": 0.0227,
    "target_denoising": 0.1839,
    "target_context": 0.1514,
    "decodes": 0.1042,
    "encodes": 0.0088,
    "scores": 0.0037,
}
"""The cost of each kind of pass in target blocks: four denoising steps, a context pass, a decode, an encode.

Named as in `RunReport.passes`; `encodes` and `scores` are of one pixel frame. From seconds of the published sizes
on one H200, compiled; lab/benchmarks/LOG.md has the conditions, and how each weight follows.
"""


def pass_weights(presets: Mapping[str, Preset]) -> dict[str, float]:
    """Return `WEIGHTS` scaled to the block sizes of the models, by role."""
    frames = {role: preset.block_frames for role, preset in presets.items()}
    frames["decodes"] = frames["target"]
    shares = {name: frames.get(name.split("_")[0], WEIGHTED_FRAMES) / WEIGHTED_FRAMES for name in WEIGHTS}
    return {name: weight * shares[name] for name, weight in WEIGHTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedRun:
    """The run of a budget. `presets`: by role. `blocks`: new ones. `given_blocks`: of the continued clip.

    `route_blocks`: those of the route before the new ones; less than `given_blocks` after a clip given as pixels.
    """

    presets: Mapping[str, Preset]
    blocks: int
    given_blocks: int = 0
    route_blocks: int = 0

    @property
    def most_handover(self) -> int:
        """Half of the denoising steps, at most those of a draft; 0 if the schedules differ."""
        drafter, target = (self.presets[role] for role in ("drafter", "target"))
        return min(len(target.steps) // 2, drafter.steps_made) if drafter.steps == target.steps else 0


def route_for_budget(budget: Budget, run: BudgetedRun) -> tuple[Route, str]:
    """Return the route that spends a budget on first blocks by the target, and a note on it.

    Of `route_shares()`, the last route within the budget is chosen, or the cheapest if there is none, and the note
    says so.
    """
    shares = route_shares(run)
    cheapest = min(shares, key=lambda route: shares[route])
    blocks, steps = [cheapest, *(route for route, share in shares.items() if share <= budget.share)][-1]
    chosen = Route(First(run.route_blocks + blocks), handover=steps)
    what = {0: "no block", 1: "the first block"}.get(blocks, f"the first {blocks} blocks")
    handed = f", with {steps} step{'s' * (steps > 1)} of a block handed over" if steps else ""
    share = shares[blocks, steps]
    below = " No route costs less here." if share > budget.share else ""
    return chosen, (
        f"A budget of {budget.share:g} of the large model's cost: it makes {what} of {run.blocks}{handed}, which "
        f"costs {share:.2f}.{below}"
    )


def route_shares(run: BudgetedRun) -> dict[tuple[int, int], float]:
    """Return the costs of all routes, from the cheapest to target-only, as shares of the latter.

    A route is the number of first blocks by the target, and the number of steps handed over. Each route has one
    more block with half of its steps handed over; the last ones hand over fewer, down to none.
    """
    half = run.most_handover
    # The route's first block is always the target's, without handover.
    first = 0 if run.route_blocks else 1
    routes = [(first, 0), *((blocks, half) for blocks in range(first + 1, run.blocks + 1))]
    if run.blocks > first:
        routes += [(run.blocks, steps) for steps in reversed(range(half))]
    target = run.presets["target"]
    steps = len(target.steps)
    whole = _block_cost(run, 0, steps)
    if not run.given_blocks:
        whole = _block_cost(run, 0, len(target.first_steps), opening=True)
    drafted = _block_cost(run, run.presets["drafter"].steps_made, 0)
    costs: dict[tuple[int, int], float] = {}
    for blocks, handed in routes:
        remade = _block_cost(run, handed, steps - handed)
        costs[blocks, handed] = math.fsum(
            (first * whole, (blocks - first) * remade, (run.blocks - blocks) * drafted)
        )
    return {route: cost / costs[run.blocks, 0] for route, cost in costs.items()}


def _block_cost(run: BudgetedRun, drafter: int, target: int, *, opening: bool = False) -> float:
    """Return the cost of a block, decoded once, in target blocks. `drafter`, `target`: denoising steps.

    `opening`: the clip's first one, without context. Of a drafter with smaller blocks, only the last is unfinished.
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
            passes = 1
            if isinstance(preset.context, Recompute):
                passes = -(-preset.context.context_frames // preset.block_frames)
            cost += (earlier + 1) * passes * weights[f"{role}_context"]
            anchors = max(anchors, preset.context.anchor_horizon)
    return cost + (weights["encodes"] if anchors else 0.0)
