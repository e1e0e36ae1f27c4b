"""The results of a finished study as numbers: summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .classes import by_class
from .compare import CURVES, Table, against_curve, curve_of, make_table, metric
from .costs import costs_with, seconds
from .gate import gate_correlations
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, ROUTE, TARGET_ONLY, Configuration
from .room import room_above
from .run import Notebook, Plan
from .statistics import Interval, as_told, interval
from .store import Record

QUALITIES = {
    "quality": "picture quality by the oracle (dB)",
    "external": "external score",
    "reward_mean": "mean reward of the frames",
}
"""What videos are ranked by, with its name in words; the first one that was measured counts."""

SEAMS = {
    "seam_error": "seam error (levels of 255)",
    "seam_change": "extra change at block borders (levels of 255)",
}
BLIND = ("ends", "anchor", ROUTE)
"""Groups that are not compared with a curve: its ends, and routes that a curve is made of."""


def summarise_study(notebook: Notebook, plan: Plan) -> dict[str, Any]:
    """Return every mean, comparison and correlation as JSON values. All rows of the plan must exist."""
    rows, gains = notebook.rows_of(plan), notebook.gains_of(plan)
    table = make_table(rows, plan.prompts, plan.seeds)
    names = list(rows[0]["metrics"])
    quality, seams = (next(name for name in known if name in names) for known in (QUALITIES, SEAMS))
    summary: dict[str, Any] = as_told(
        {
            "prompts": len(plan.prompts),
            "seeds": plan.seeds,
            "blocks": plan.blocks,
            "quality": {"metric": quality, "words": QUALITIES[quality]},
            "seams": {"metric": seams, "words": SEAMS[seams]},
            "configurations": [
                _configuration(table, configuration, plan, names, quality)
                for configuration in plan.configurations
                if configuration.group != ROUTE
            ],
            "weights": dict(plan.weights),
            "room": room_above(rows, plan, quality),
            "classes": by_class(rows, plan, quality),
            "gate": gate_correlations(gains, plan.prompts),
            "sharing": _sharing(rows),
        },
        len(plan.prompts),
    )
    return summary


def _configuration(
    table: Table, configuration: Configuration, plan: Plan, metrics: Sequence[str], quality: str
) -> dict[str, Any]:
    name, bootstrap, costs = configuration.name, table.bootstrap, costs_with(plan.weights)
    accepted = bootstrap.means(table.per_prompt(name, lambda row: row["accepted"]))
    parts = {part: table.mean(name, _part(part)) for part in table.rows[name][plan.pairs[0]]["seconds"]}
    return {
        "name": name,
        "group": configuration.group,
        "tau": configuration.router.tau if configuration.router.policy in ("reward", "relative") else None,
        "metrics": {m: table.mean(name, metric(m)) for m in metrics},
        **{cost: table.mean(name, cost_of) for cost, cost_of in costs.items() if cost != "seconds"},
        "draft_calls": table.mean(name, lambda row: row["draft_calls"]),
        "draft_share": interval(accepted.mean(axis=1)),
        "accepted_per_block": [interval(block) for block in accepted.T],
        "seconds": parts,
        "speed_up": table.ratio(name, TARGET_ONLY, seconds) if TARGET_ONLY in table.rows else None,
        "share_of_gap": _share_of_gap(table, name, quality),
        "against": {
            end: table.difference(name, end, metric(quality))
            for end in (TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY)
            if end in table.rows and end != name
        },
        "at_same": {
            curve: {
                cost: against_curve(table, name, curve_of(curve, plan.configurations), cost_of, metric(quality))
                for cost, cost_of in costs.items()
            }
            for curve in CURVES
            if configuration.group not in (*BLIND, curve)
        },
    }


def _part(part: str) -> Any:
    return lambda row: row["seconds"][part]


def _share_of_gap(table: Table, name: str, quality: str) -> Interval | None:
    """Return how much of the way from draft-only to target-only a configuration goes; 1 is all of it."""
    if not {TARGET_ONLY, DRAFT_ONLY} <= set(table.rows):
        return None
    own, target, draft = (
        table.bootstrap.means(table.per_prompt(c, metric(quality))) for c in (name, TARGET_ONLY, DRAFT_ONLY)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval((own - draft) / (target - draft))


def _sharing(rows: Sequence[Record]) -> dict[str, Any]:
    """Return how many model calls the rows needed, and how many of them were computed."""
    asked: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for row in rows:
        asked.update(row["sharing"]["asked"])
        made.update(row["sharing"]["made"])
    spent = {name: sum(row["sharing"][name] for row in rows) for name in ("seconds_asked", "seconds_made")}
    return {"asked": dict(asked), "made": dict(made), **spent}
