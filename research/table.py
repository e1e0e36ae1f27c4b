"""The results of a finished study, for people: table.md."""

from __future__ import annotations

from collections.abc import Sequence

from .gate import SCORES
from .markdown import Numbers, markdown, percent, value_text, with_interval
from .statistics import ENOUGH, too_few
from .table_room import classes_text, room_text

COSTS = {"cost": "the same cost", "target_calls": "as many target calls", "seconds": "the same time"}
CURVES = {"first": "the first m blocks by the target", "random": "random routing that leaves it the first block"}


def table_text(summary: Numbers) -> str:
    """Return the whole page."""
    routers = (
        (_main_table, _verdicts, _matched_table, classes_text, _gate, _time) if summary["configurations"] else ()
    )
    sections = (_opening, *routers, room_text, _saving)
    return "\n\n".join(filter(None, (section(summary) for section in sections))) + "\n"


def _opening(summary: Numbers) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    what = f"{len(summary['configurations'])} configurations" if summary["configurations"] else "every route"
    return (
        f"# Study: {what}, {summary['prompts']} prompts, "
        f"seeds {seeds}, {summary['blocks']} blocks\n\n"
        f"Quality: {summary['quality']['words']}; higher is better. {_intervals(summary['prompts'])} "
        "*Gap* is how much of the way from draft-only to target-only a "
        "configuration goes. *Cost* counts every pass, decode and score as the published pair would pay for it, in "
        "blocks that the target makes alone. *Drafts* is the share of all blocks that are the drafter's. Seconds "
        "are what a video would have taken alone on this machine."
    )


def _intervals(prompts: int) -> str:
    few = too_few(prompts)
    return f"{few}." if few else "In brackets: 95 % bootstrap intervals over prompts, paired by prompt and seed."


def _main_table(summary: Numbers) -> str:
    header = (
        "configuration", "quality", "minus target-only", "minus draft-only", "gap",
        "cost", "target calls", "drafts", "seconds", summary["seams"]["words"],
    )  # fmt: skip
    return markdown(header, [_main_row(c, summary) for c in summary["configurations"]])


def _main_row(configuration: Numbers, summary: Numbers) -> list[str]:
    metrics, against = configuration["metrics"], configuration["against"]
    return [
        configuration["name"],
        with_interval(metrics[summary["quality"]["metric"]]),
        with_interval(against.get("target-only"), sign="+"),
        with_interval(against.get("draft-only"), sign="+"),
        percent(configuration["share_of_gap"]),
        value_text(configuration["cost"], 2),
        value_text(configuration["target_calls"], 2),
        percent(configuration["draft_share"]),
        value_text(configuration["seconds"]["total"], 2),
        with_interval(metrics[summary["seams"]["metric"]]),
    ]


def _verdicts(summary: Numbers) -> str:
    title = "## Where do target calls pay?"
    if summary["prompts"] < ENOUGH:
        return f"{title}\n\nThat takes at least {ENOUGH} prompts."
    return "\n\n".join((title, *(_verdict(summary, curve, cost) for curve in CURVES for cost in COSTS)))


def _verdict(summary: Numbers, curve: str, cost: str) -> str:
    known = {c["name"]: c["at_same"].get(curve, {}).get(cost) for c in summary["configurations"]}
    found = {name: value for name, value in known.items() if value}
    start = f"Against {CURVES[curve]}, at {COSTS[cost]}"
    if not found:
        return f"{start}: nothing to compare."
    better = [name for name, value in found.items() if value["low"] > 0]
    worse = [name for name, value in found.items() if value["high"] < 0]
    open_ones = len(found) - len(better) - len(worse)
    chance = len(found) * 0.025
    return (
        f"{start}: {_listed(better)} better, {_listed(worse)} worse, and {open_ones} of {len(found)} cannot be "
        f"told apart from it (the interval spans zero). By chance alone about {chance:.1f} of {len(found)} would "
        "seem better."
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no configuration is"
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


MATCHED = {
    "first m, at the same cost": ("first", "cost"),
    "first m, at as many target calls": ("first", "target_calls"),
    "random, at as many target calls": ("random", "target_calls"),
    "first m, at the same time": ("first", "seconds"),
}


def _matched_table(summary: Numbers) -> str:
    rows = [
        [c["name"], *(_matched_cell(c["at_same"].get(curve, {}).get(cost)) for curve, cost in MATCHED.values())]
        for c in summary["configurations"]
        if c["at_same"]
    ]
    return markdown(("quality minus that of", *MATCHED), rows)


def _matched_cell(value: Numbers | None) -> str:
    if value is None:
        return "beyond the curve"
    if value["low"] is None:
        return with_interval(value, sign="+")
    word = "better" if value["low"] > 0 else "worse" if value["high"] < 0 else "open"
    return f"{with_interval(value, sign='+')} {word}"


def _gate(summary: Numbers) -> str:
    gate = summary["gate"]
    opening = "## Does the score know what the target would gain?\n\n"
    if not gate:
        return opening + "Not measured: it takes a metric for single frames, such as the pocket world's oracle."
    names = dict(zip(SCORES, ("worst frame's score", "mean score"), strict=True))
    cells = [
        [names[score], *(with_interval(gate[f"{score}_{name}"], sign="+") for name in ("pearson", "spearman"))]
        for score in SCORES
    ]
    table = markdown(("correlation with the target's gain", "Pearson", "Spearman"), cells)
    return (
        f"{opening}Over all blocks of the anchor-only videos, each generated by both models from the same history. "
        f"A useful gate is well below zero: a low score where the target gains much.\n\n{table}"
    )


def _time(summary: Numbers) -> str:
    totals = [c["seconds"] for c in summary["configurations"]]
    parts = [name for name in totals[0] if name not in ("total", "first_block")]
    everything = sum(t["total"]["value"] for t in totals) or 1.0
    shares = [f"{part} {sum(t[part]['value'] for t in totals) / everything:.0%}" for part in parts]
    return f"## Where the time goes\n\nOver all configurations: {', '.join(shares)}."


def _saving(summary: Numbers) -> str:
    sharing = summary["sharing"]
    asked, made = sum(sharing["asked"].values()), sum(sharing["made"].values())
    parts = ", ".join(f"{made_of} of {n} {kind}s" for kind, n, made_of in _calls(sharing))
    return (
        f"## What was shared\n\nOf {asked} model calls, {made} were computed ({parts}); the rest came from the "
        f"cache. That took {sharing['seconds_made']:.0f} s instead of {sharing['seconds_asked']:.0f} s."
    )


def _calls(sharing: Numbers) -> list[tuple[str, int, int]]:
    return [(kind, count, sharing["made"].get(kind, 0)) for kind, count in sorted(sharing["asked"].items())]
