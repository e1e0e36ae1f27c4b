"""Routes as the Quality Router's inputs describe them, on its node and in an API prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...sdvg_core.errors import BadInput, quoted
from ...sdvg_core.settings.route import (
    CASCADE_MARGIN,
    ROUTE_PRESETS,
    Aggregation,
    At,
    Budget,
    First,
    Gate,
    Mean,
    Quantile,
    Refine,
    Route,
    Stride,
    TargetOnly,
    WorstFrame,
)

LONGEST_NUMBER = 9
"""Digits of a block's number."""
REWARD = "reward"
HYBRID = "hybrid"
AT_POLICIES = ("balanced", "at")
"""Names under which the node offers the policy `at`; a new node has the first name."""
FIRST_POLICIES = ("fast", "careful", "first")
"""Names under which the node offers the policy `first`, each with its own defaults."""
POLICY_INPUTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(AT_POLICIES, ("target_at", "handover_steps", "target_steps")),
    **dict.fromkeys(FIRST_POLICIES, ("target_blocks", "handover_steps", "target_steps")),
    "budget": ("budget",),
    HYBRID: ("tau", "forced_blocks", "bail_out"),
    REWARD: ("tau", "aggregation", "quantile", "cascade", "forced_blocks", "bail_out", "handover", "target_steps"),
    "stride": ("stride", "forced_blocks", "handover", "target_steps"),
    "always-target": ("handover", "target_steps"),
    "refine": ("strength",),
}
"""The inputs of each policy, in the order of the node."""
OLDER_INPUTS: Mapping[str, int] = {"forced_blocks": 1, "bail_out": 0, "handover": 0}
"""Inputs that stood under every policy in older workflows, with their defaults."""


def route_of_prompt(inputs: Mapping[str, Any]) -> Route | Budget:
    """Return the route of the node in an API prompt. `inputs`: of the node."""
    values = {name: inputs[name] for name in OLDER_INPUTS if name in inputs}
    values |= {name.removeprefix("policy."): inputs[name] for name in inputs if name.startswith("policy")}
    read = {"policy", *POLICY_INPUTS[values["policy"]]}
    return route_of({name: value for name, value in values.items() if name in read})


def route_of(values: Mapping[str, Any]) -> Route | Budget:
    """Return the route that the widgets of a policy describe."""
    name = values["policy"]
    around = {name: values[name] for name in ("forced_blocks", "bail_out") if name in values}
    handover = values.get("handover_steps", values.get("handover", 0))
    steps = {"handover": handover, "target_steps": values.get("target_steps", 0)}
    if name in AT_POLICIES:
        return Route(At(read_block_numbers(values["target_at"])), **steps)
    if name in FIRST_POLICIES:
        return Route(First(values["target_blocks"]), **steps)
    if name == "budget":
        return Budget(values["budget"])
    if name == HYBRID:
        return replace(ROUTE_PRESETS[HYBRID], policy=Gate(values["tau"], WorstFrame(CASCADE_MARGIN), **around))
    if name == REWARD:
        return Route(Gate(values["tau"], _aggregation(values), **around), **steps)
    if name == "stride":
        return Route(Stride(values["stride"], **around), **steps)
    if name == "refine":
        return Route(Refine(values["strength"]))
    return Route(TargetOnly(), **steps)


def read_block_numbers(text: str) -> tuple[int, ...]:
    """Return block numbers from text such as "2, 5". Raises `BadInput` for other text."""
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdecimal() and len(word) <= LONGEST_NUMBER for word in words):
        raise BadInput(f"target_at is {quoted(text, 60)}; give numbers of blocks, such as 2, 5")
    return tuple(map(int, words))


def _aggregation(values: Mapping[str, Any]) -> Aggregation:
    how = values.get("aggregation", "min")
    if how == "mean":
        return Mean()
    if how == "quantile":
        return Quantile(**{"q": values["quantile"]} if "quantile" in values else {})
    return WorstFrame(CASCADE_MARGIN if values.get("cascade") else None)
