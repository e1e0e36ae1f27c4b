"""The results of a finished study as numbers: summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .folder import Notebook, Plan
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, TARGET_ONLY, Configuration
from .statistics import (
    CURVES,
    Array,
    Bootstrap,
    Interval,
    Record,
    Table,
    against_curve,
    as_told,
    correlation,
    cost_with,
    curve_of,
    drawn,
    interval,
    make_table,
    metric,
    target_calls,
)

QUALITIES = {
    "quality": "picture quality by the oracle (dB)",
    "external": "external score",
    "reward_mean": "mean reward of the frames",
}
"""What videos are ranked by, with its name in words; the first one that was measured counts."""

SEAMS = {"seam_error": "seam error (levels of 255)", "seam_change": "extra change at block borders (levels of 255)"}
SCORES = ("worst_score", "mean_score")


def summarise_study(notebook: Notebook, plan: Plan) -> dict[str, Any]:
    """Return every mean, comparison and correlation as JSON values. All rows of the plan must exist."""
    rows = notebook.rows_of(plan)
    table = make_table(rows, plan.prompts, plan.seeds)
    names = list(rows[0]["metrics"])
    quality, seams = (next(name for name in known if name in names) for known in (QUALITIES, SEAMS))
    figures = {
        **conditions_of(plan, quality),
        "seams": {"metric": seams, "words": SEAMS[seams]},
        "configurations": [_configuration(table, c, plan, names, quality) for c in plan.configurations],
        "weights": dict(plan.weights),
        "classes": by_class(rows, plan, quality),
        "gate": gate_correlations(notebook.gains_of(plan), plan.prompts),
    }
    summary: dict[str, Any] = as_told(figures, len(plan.prompts))
    return summary


def conditions_of(plan: Plan, quality: str) -> dict[str, Any]:
    """Return what a page says first. `quality`: the metric."""
    words = {"metric": quality, "words": QUALITIES[quality]}
    return {"prompts": len(plan.prompts), "seeds": plan.seeds, "blocks": plan.blocks, "quality": words}


def _configuration(
    table: Table, configuration: Configuration, plan: Plan, metrics: Sequence[str], quality: str
) -> dict[str, Any]:
    name, quality_of = configuration.name, metric(quality)
    costs = {"cost": cost_with(plan.weights), "target_calls": target_calls}
    accepted = table.bootstrap.means(table.per_prompt(name, lambda row: row["accepted"]))
    ends = [end for end in (TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY) if end in table.rows]
    speed_up = gap = None
    with np.errstate(divide="ignore", invalid="ignore"):
        if TARGET_ONLY in ends:
            speed_up = interval(table.means(TARGET_ONLY, costs["cost"]) / table.means(name, costs["cost"]))
        if {TARGET_ONLY, DRAFT_ONLY} <= set(ends):
            own, target, draft = (table.means(c, quality_of) for c in (name, TARGET_ONLY, DRAFT_ONLY))
            gap = interval((own - draft) / (target - draft))
    return {
        "name": name,
        "group": configuration.group,
        "tau": configuration.router.tau if configuration.router.policy in ("reward", "relative") else None,
        "metrics": {m: table.mean(name, metric(m)) for m in metrics},
        **{cost: table.mean(name, cost_of) for cost, cost_of in costs.items()},
        "draft_calls": table.mean(name, lambda row: row["draft_calls"]),
        "draft_share": interval(accepted.mean(axis=1)),
        "accepted_per_block": [interval(block) for block in accepted.T],
        "speed_up": speed_up,
        "share_of_gap": gap,
        "against": {end: table.difference(name, end, quality_of) for end in ends if end != name},
        "at_same": {
            curve: {
                cost: against_curve(table, name, curve_of(curve, plan.configurations), cost_of, quality_of)
                for cost, cost_of in costs.items()
            }
            for curve in CURVES
            if configuration.group not in ("ends", "anchor", curve)
        },
    }


def by_class(rows: Sequence[Record], plan: Plan, quality: str) -> list[dict[str, Any]]:
    """Return for every class of prompts what the target gains in all, and each gate's share of drafts.

    Nothing if no gate was run, or if the prompts have no classes.
    """
    gates = [c.name for c in plan.configurations if c.group in ("reward-min", "relative")]
    classes = dict.fromkeys(plan.classes[prompt] for prompt in plan.prompts if prompt in plan.classes)
    return [_of_class(name, rows, plan, quality, gates) for name in classes if gates]


def _of_class(name: str, rows: Sequence[Record], plan: Plan, quality: str, gates: Sequence[str]) -> dict[str, Any]:
    prompts = tuple(prompt for prompt in plan.prompts if plan.classes.get(prompt) == name)
    table = make_table([row for row in rows if row["prompt"] in prompts], prompts, plan.seeds)
    ends = {TARGET_ONLY, DRAFT_ONLY} <= table.rows.keys()
    figures = {
        "class": name,
        "prompts": len(prompts),
        "target_gain": table.difference(TARGET_ONLY, DRAFT_ONLY, metric(quality)) if ends else None,
        "draft_share": {gate: table.mean(gate, lambda row: float(np.mean(row["accepted"]))) for gate in gates},
    }
    found: dict[str, Any] = as_told(figures, len(prompts))
    return found


def gate_correlations(gains: Sequence[Record], prompts: Sequence[str]) -> dict[str, Interval | None]:
    """Return the correlations of scores and gains over all blocks, by name of score and correlation.

    A gate that knows where the target helps has a correlation well below zero: low score, large gain. None if
    either does not vary; an empty result without qualities.
    """
    known = [gain for gain in gains if gain["draft_quality"] is not None]
    if not known:
        return {}
    bootstrap, found = Bootstrap(len(prompts)), {}
    for score in SCORES:
        groups = [points(known, score, prompt) for prompt in prompts]
        for kind in ("pearson", "spearman"):
            of = lambda counts, kind=kind, groups=groups: correlation(kind, *drawn(groups, counts).T)  # noqa: E731
            found[f"{score}_{kind}"] = bootstrap.per_draw(of)
    return found


def points(gains: Sequence[Mapping[str, Any]], score: str, prompt: str | None = None) -> Array:
    """Return (score, gain) of every block, of one prompt or of all: `(n, 2)`."""
    chosen = [gain for gain in gains if prompt in (None, gain["prompt"])]
    pairs = [(gain[score], gain["target_quality"] - gain["draft_quality"]) for gain in chosen]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)
