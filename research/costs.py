"""What a video costs in target calls: every pass that was counted, weighed by its share of a whole target block."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.work import context_passes, pass_seconds

from .store import Record

Weights = Mapping[str, float]
NumberOf = Callable[[Record], float]


def pass_weights(request: PlanRequest) -> Weights:
    """Return the cost of each kind of pass in whole target blocks: denoised, with context, decoded."""
    seconds = pass_seconds(request)
    preset = request.target_preset
    block = (
        request.steps_of("target") * seconds["target_denoising"]
        + context_passes(preset) * seconds["target_context"]
        + (seconds["encodes"] if preset.policy == "recompute" else 0.0)
        + seconds["decodes"]
        + seconds["deliveries"]
    )
    return {name: value / block for name, value in seconds.items()}


def cost_with(weights: Weights) -> NumberOf:
    """Return a function that gives the cost of a row, in target blocks."""
    return lambda row: sum(weights[name] * count for name, count in row["passes"].items())


def target_calls(row: Record) -> float:
    """How many blocks the target generated."""
    return float(row["target_calls"])


def seconds(row: Record) -> float:
    """How long the video took, as if nothing had been shared."""
    return float(row["seconds"]["total"])


def costs_with(weights: Weights) -> dict[str, NumberOf]:
    """Return the ways to count a cost, by name."""
    return {"cost": cost_with(weights), "target_calls": target_calls, "seconds": seconds}
