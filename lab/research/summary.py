"""The results of a finished study: as numbers, summary.json, and for people, table.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sdvg_core.settings.route import Gate

from .folder import Plan
from .markdown import Numbers, figure, markdown, with_interval
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, TARGET_ONLY, Configuration
from .statistics import (
    CURVES,
    ENOUGH,
    Record,
    Table,
    against_curve,
    as_json,
    cost_with,
    curve_of,
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
OF_WORLD = {
    "last_block_quality": "last block, dB",
    "at_its_place": "at its place",
    "last_block_at_its_place": "at its place, last block",
}
"""What else is shown of the small world's videos, and the heads of its columns."""


def summarise_study(rows: Sequence[Record], plan: Plan) -> dict[str, Any]:
    """Return every mean and comparison as JSON values. `rows`: all of the plan."""
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
    }
    summary: dict[str, Any] = as_json(figures, len(plan.prompts))
    return summary


def table_of_rows(rows: Sequence[Record], plan: Plan, quality: str) -> list[list[Any]]:
    """Return every video in a line under a head, for a csv. `quality`: the metric."""
    names = ("configuration", "prompt", "seed", "route", "target_calls")
    measured = [quality, *_of_world(rows[0]["metrics"])]
    cost = cost_with(plan.weights)
    lines = [
        [*(row[name] for name in names), f"{cost(row):.3f}", *(_cell(row["metrics"][name]) for name in measured)]
        for row in rows
    ]
    return [[*names, "cost", *measured], *lines]


def _of_world(metrics: Iterable[str]) -> list[str]:
    return [name for name in OF_WORLD if name in metrics]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _configuration(
    table: Table, configuration: Configuration, plan: Plan, metrics: Sequence[str], quality: str
) -> dict[str, Any]:
    name = configuration.name
    quality_of = metric(quality)
    policy = configuration.route.policy
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
        "tau": policy.tau if isinstance(policy, Gate) else None,
        "metrics": {m: table.mean(name, metric(m)) for m in metrics},
        "median": table.median(name, quality_of),
        "minus_target": {
            m: table.difference(name, TARGET_ONLY, metric(m))
            for m in _of_world(metrics)
            if TARGET_ONLY in ends and name != TARGET_ONLY
        },
        "left_out": {m: table.left_out(name, metric(m)) for m in _of_world(metrics)},
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


# --- for people

MATCHED = {
    "minus first m, same cost": ("first", "cost"),
    "minus random, same cost": ("random", "cost"),
    "minus random, as many target calls": ("random", "target_calls"),
}


def page_text(summary: Numbers) -> str:
    """Return the whole page."""
    return "\n\n".join([_opening(summary), _table(summary), *_world(summary)]) + "\n"


def _opening(summary: Numbers) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    few = too_few(summary["prompts"])
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
        "configuration", "quality", "minus target-only", "gap", "cost", "target calls", "drafts kept",
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
            figure(c["draft_share"], ".0%"),
            *(_matched_cell(c["at_same"], *of) for of in MATCHED.values()),
        ]
        for c in summary["configurations"]
    ]
    return markdown(header, rows)


def _world(summary: Numbers) -> Iterator[str]:
    """Yield what else is known of the small world's videos."""
    names = _of_world(summary["configurations"][0]["metrics"])
    if not names:
        return
    header = ["configuration", "median, dB"]
    for name in names:
        header += [OF_WORLD[name], "minus target-only"]
    rows = [[c["name"], f"{c['median']:.2f}", *_world_cells(c, names)] for c in summary["configurations"]]
    left_out = max(of for c in summary["configurations"] for of in c["left_out"].values())
    yield (
        "*At its place*: the share of frames that show the moving thing where it is due, half a second early or "
        f"late at most. Prompts in which it never is due are left out: {left_out} of {summary['prompts']} at most."
    )
    yield markdown(header, rows)


def _world_cells(configuration: Numbers, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield with_interval(configuration["metrics"][name])
        yield with_interval(configuration["minus_target"].get(name), sign="+")


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
