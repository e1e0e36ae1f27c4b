"""The results of a finished study: as numbers, summary.json, and for people, table.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .folder import Notebook, Plan
from .markdown import Numbers, figure, markdown, with_interval
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, TARGET_ONLY, Configuration
from .statistics import (
    CURVES,
    ENOUGH,
    Array,
    Bootstrap,
    Counts,
    Interval,
    Record,
    Table,
    against_curve,
    as_json,
    correlation,
    cost_with,
    curve_of,
    drawn,
    interval,
    make_table,
    metric,
    too_few,
)

QUALITIES = {
    "quality": "picture quality by the oracle (dB)",
    "external": "external score",
    "reward_mean": "mean reward of the frames",
}
"""What videos are ranked by, with its name in words; the first one that was measured counts."""

SEAMS = ("seam_error", "seam_change")
"""In levels of 255."""
SCORES, KINDS = ("worst_score", "mean_score"), ("pearson", "spearman")


def summarise_study(notebook: Notebook, plan: Plan) -> dict[str, Any]:
    """Return every mean, comparison and correlation as JSON values. All rows of the plan must exist."""
    rows = notebook.rows_of(plan)
    table = make_table(rows, plan.prompts, plan.seeds)
    names = list(rows[0]["metrics"])
    quality = next(name for name in QUALITIES if name in names)
    figures = {
        "prompts": len(plan.prompts),
        "seeds": plan.seeds,
        "blocks": plan.blocks,
        "quality": {"metric": quality, "words": QUALITIES[quality]},
        "configurations": [_configuration(table, c, plan, names, quality) for c in plan.configurations],
        "weights": dict(plan.weights),
        "classes": by_class(rows, plan, quality),
        "gate": gate_correlations(notebook.gains_of(plan), plan.prompts),
    }
    summary: dict[str, Any] = as_json(figures, len(plan.prompts))
    return summary


def table_of_rows(rows: Sequence[Record], plan: Plan, quality: str) -> list[list[Any]]:
    """Return every video in a line under a head, for a csv. `quality`: the metric."""
    cost, names = cost_with(plan.weights), ("configuration", "prompt", "seed", "route", "target_calls")
    lines = [[*(row[n] for n in names), f"{cost(row):.3f}", f"{row['metrics'][quality]:.3f}"] for row in rows]
    return [[*names, "cost", quality], *lines]


def _configuration(
    table: Table, configuration: Configuration, plan: Plan, metrics: Sequence[str], quality: str
) -> dict[str, Any]:
    name, quality_of = configuration.name, metric(quality)
    costs = {"cost": cost_with(plan.weights), "target_calls": lambda row: float(row["target_calls"])}
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
        "tau": configuration.router.tau if configuration.router.needs_scorer else None,
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
            if configuration.group not in ("ends", ANCHOR_ONLY, curve)
        },
    }


def by_class(rows: Sequence[Record], plan: Plan, quality: str) -> list[dict[str, Any]]:
    """Return for every class of prompts what the target gains in all, and each gate's share of drafts.

    Nothing if no gate was run, or if the prompts have no classes.
    """
    gates = [c.name for c in plan.configurations if c.group == "reward-min"]
    classes = dict.fromkeys(plan.classes[prompt] for prompt in plan.prompts if prompt in plan.classes)
    found = []
    for name in classes if gates else ():
        prompts = tuple(prompt for prompt in plan.prompts if plan.classes.get(prompt) == name)
        table = make_table([row for row in rows if row["prompt"] in prompts], prompts, plan.seeds)
        ends = {TARGET_ONLY, DRAFT_ONLY} <= table.rows.keys()
        gain = table.difference(TARGET_ONLY, DRAFT_ONLY, metric(quality)) if ends else None
        shares = {gate: table.mean(gate, lambda row: float(np.mean(row["accepted"]))) for gate in gates}
        figures = {"class": name, "prompts": len(prompts), "target_gain": gain, "draft_share": shares}
        found.append(as_json(figures, len(prompts)))
    return found


def gate_correlations(gains: Sequence[Record], prompts: Sequence[str]) -> dict[str, Interval | None]:
    """Return the correlations of scores and gains over all blocks; None if one does not vary, {} without qualities.

    A gate that knows where the target helps has a correlation well below zero: low score, large gain.
    """
    known = [gain for gain in gains if gain["draft_quality"] is not None]
    if not known:
        return {}
    pairs = {score: [points(known, score, prompt) for prompt in prompts] for score in SCORES}

    def figures(counts: Counts) -> dict[str, float]:
        at = {score: drawn(groups, counts).T for score, groups in pairs.items()}
        return {f"{name}_{kind}": correlation(kind, *at[name]) for name in SCORES for kind in KINDS}

    return Bootstrap(len(prompts)).per_draw(figures)


def points(gains: Sequence[Mapping[str, Any]], score: str, prompt: str | None = None) -> Array:
    """Return (score, gain) of every block, of one prompt or of all: `(n, 2)`."""
    chosen = [gain for gain in gains if prompt in (None, gain["prompt"])]
    pairs = [(gain[score], gain["target_quality"] - gain["draft_quality"]) for gain in chosen]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


# --- for people

MATCHED = {
    "minus first m, same cost": ("first", "cost"),
    "minus random, same cost": ("random", "cost"),
    "minus random, as many target calls": ("random", "target_calls"),
}


def page_text(summary: Numbers) -> str:
    """Return the whole page."""
    sections = (_opening, _table, _classes, _gate)
    return "\n\n".join(filter(None, (section(summary) for section in sections))) + "\n"


def _opening(summary: Numbers) -> str:
    seeds, few = ", ".join(map(str, summary["seeds"])), too_few(summary["prompts"])
    intervals = "In brackets: 95 % bootstrap intervals over prompts, paired by prompt and seed."
    compared = sum(bool(c["at_same"]) for c in summary["configurations"])
    chance = (
        f"*Open*: the interval spans zero. By chance alone about {compared * 0.025:.1f} of {compared} would seem "
        "better in each column."
        if summary["prompts"] >= ENOUGH
        else f"Which is better takes at least {ENOUGH} prompts."
    )
    return (
        f"# Study: {len(summary['configurations'])} configurations, {summary['prompts']} prompts, seeds {seeds}, "
        f"{summary['blocks']} blocks\n\n"
        f"Quality: {summary['quality']['words']}; higher is better. {few + '.' if few else intervals} "
        "*Gap* is how much of the way from draft-only to target-only a configuration goes. *Cost* counts every "
        "pass, decode and score as the published pair would pay for it, in blocks that the target makes alone. "
        "The last columns compare with the first m blocks by the target, and with random routing of all blocks "
        f"but its first. {chance}"
    )


def _table(summary: Numbers) -> str:
    header = (
        "configuration", "quality", "minus target-only", "gap", "cost", "target calls",
        *MATCHED,
    )  # fmt: skip
    rows = [
        [
            c["name"],
            with_interval(c["metrics"][summary["quality"]["metric"]]),
            with_interval(c["against"].get(TARGET_ONLY), sign="+"),
            figure(c["share_of_gap"], ".0%"),
            figure(c["cost"], ".2f"),
            figure(c["target_calls"], ".2f"),
            *(_matched_cell(c["at_same"], *of) for of in MATCHED.values()),
        ]
        for c in summary["configurations"]
    ]
    return markdown(header, rows)


def _matched_cell(at_same: Numbers, curve: str, cost: str) -> str:
    if curve not in at_same:
        return "-"
    value = at_same[curve][cost]
    if value is None:
        return "beyond the curve"
    if value["low"] is None:
        return with_interval(value, sign="+")
    word = "better" if value["low"] > 0 else "worse" if value["high"] < 0 else "open"
    return f"{with_interval(value, sign='+')} {word}"


def _classes(summary: Numbers) -> str:
    """Return each gate's share of drafts by class of prompt; empty if the prompts have no classes."""
    if not summary["classes"]:
        return ""
    gates = list(summary["classes"][0]["draft_share"])
    rows = [
        [
            of["class"],
            str(of["prompts"]),
            with_interval(of["target_gain"], "+"),
            *(figure(of["draft_share"][gate], ".0%") for gate in gates),
        ]
        for of in summary["classes"]
    ]
    table = markdown(("class", "prompts", "target-only minus draft-only", *gates), rows)
    return f"## By class of prompt\n\nThe share of all blocks whose draft is kept.\n\n{table}"


def _gate(summary: Numbers) -> str:
    gate, title = summary["gate"], "## Does the score know what the target would gain?"
    if not gate:
        return f"{title}\n\nNot measured: it takes a metric for single frames, such as the pocket world's oracle."
    rows = [
        [words, *(with_interval(gate[f"{score}_{kind}"], sign="+") for kind in KINDS)]
        for score, words in zip(SCORES, ("worst frame's score", "mean score"), strict=True)
    ]
    return (
        f"{title}\n\nOver all blocks of the anchor-only videos, each generated by both models from the same "
        "history. A useful gate is well below zero: a low score where the target gains much.\n\n"
        + markdown(("correlation with the target's gain", "Pearson", "Spearman"), rows)
    )
