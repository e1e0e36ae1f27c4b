"""The results of a finished study, for people: table.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .gate import SCORES

Numbers = Mapping[str, Any]
COSTS = {"target_calls": "as many target calls", "seconds": "the same time"}
ENOUGH = 10
GATES = ("reward-min", "reward-mean", "reward-quantile", "own", "repair", "percentile")


def table_text(summary: Numbers) -> str:
    """Return the whole page."""
    parts = (_opening(summary), _main_table(summary), _verdicts(summary), _matched_table(summary))
    return "\n\n".join((*parts, _gate(summary), _time(summary), _saving(summary))) + "\n"


def _opening(summary: Numbers) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    return (
        f"# Study: {len(summary['configurations'])} configurations, {summary['prompts']} prompts, "
        f"seeds {seeds}, {summary['blocks']} blocks\n\n"
        f"Quality: {summary['quality']['words']}; higher is better. In brackets: 95 % bootstrap intervals "
        "over prompts, paired by prompt and seed. *Gap* is how much of the way from draft-only to target-only a "
        "configuration goes. *Drafts* is the share of all blocks that are the drafter's. Seconds are what a video "
        f"would have taken alone."
    )


def _main_table(summary: Numbers) -> str:
    header = (
        "configuration", "quality", "minus target-only", "minus draft-only", "gap",
        "target calls", "drafts", "seconds", "speed-up", summary["seams"]["words"],
    )  # fmt: skip
    return _markdown(header, [_main_row(c, summary) for c in summary["configurations"]])


def _main_row(configuration: Numbers, summary: Numbers) -> list[str]:
    metrics, against = configuration["metrics"], configuration["against"]
    return [
        configuration["name"],
        _with_interval(metrics[summary["quality"]["metric"]]),
        _with_interval(against.get("target-only"), sign="+"),
        _with_interval(against.get("draft-only"), sign="+"),
        _percent(configuration["share_of_gap"]),
        _value(configuration["target_calls"], 2),
        _percent(configuration["draft_share"]),
        _value(configuration["seconds"]["total"], 2),
        _value(configuration["speed_up"], 2),
        _with_interval(metrics[summary["seams"]["metric"]]),
    ]


def _verdicts(summary: Numbers) -> str:
    lines = ["## Does the reward route better than chance?"]
    if summary["prompts"] < ENOUGH:
        return f"{lines[0]}\n\nThat takes at least {ENOUGH} prompts; intervals over fewer mean little."
    for cost, words in COSTS.items():
        gates = [c for c in summary["configurations"] if c["group"] in GATES]
        found = {c["name"]: c["against_random_at_same"].get(cost) for c in gates}
        lines.append(_verdict({name: value for name, value in found.items() if value}, words))
    return "\n\n".join(lines)


def _verdict(found: Mapping[str, Numbers], words: str) -> str:
    if not found:
        return f"At {words}: nothing to compare; it takes a gate, target-only, anchor-only and random@*."
    better = [name for name, value in found.items() if value["low"] > 0]
    worse = [name for name, value in found.items() if value["high"] < 0]
    open_ones = len(found) - len(better) - len(worse)
    chance = len(found) * 0.025
    return (
        f"At {words}, against random routing that also leaves block 0 to the target: "
        f"{_listed(better)} better, {_listed(worse)} worse, and {open_ones} of {len(found)} cannot be told apart "
        f"from it (the interval spans zero). By chance alone about {chance:.1f} of {len(found)} would seem better."
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no configuration is"
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _matched_table(summary: Numbers) -> str:
    rows = [
        [c["name"], *(_matched_cell(c["against_random_at_same"][cost]) for cost in COSTS)]
        for c in summary["configurations"]
        if c["against_random_at_same"]
    ]
    return _markdown(("quality minus random routing", *(f"at {words}" for words in COSTS.values())), rows)


def _matched_cell(value: Numbers | None) -> str:
    if value is None:
        return "beyond the curve"
    word = "better" if value["low"] > 0 else "worse" if value["high"] < 0 else "open"
    return f"{_with_interval(value, sign='+')} {word}"


def _gate(summary: Numbers) -> str:
    gate = summary["gate"]
    opening = "## Does the score know what the target would gain?\n\n"
    if not gate:
        return opening + "Not measured: it takes a metric for single frames, such as the pocket world's oracle."
    names = dict(zip(SCORES, ("worst frame's score", "mean score"), strict=True))
    cells = [
        [names[score], *(_with_interval(gate[f"{score}_{name}"], sign="+") for name in ("pearson", "spearman"))]
        for score in SCORES
    ]
    table = _markdown(("correlation with the target's gain", "Pearson", "Spearman"), cells)
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


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_interval(value: Numbers | None, sign: str = "") -> str:
    if value is None:
        return "-"
    return f"{value['value']:{sign}.2f} [{value['low']:{sign}.2f}, {value['high']:{sign}.2f}]"


def _value(value: Numbers | None, decimals: int) -> str:
    return "-" if value is None else f"{value['value']:.{decimals}f}"


def _percent(value: Numbers | None) -> str:
    return "-" if value is None else f"{value['value']:.0%}"
