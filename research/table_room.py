"""The sections of table.md on every route, and on the classes of prompts."""

from __future__ import annotations

from .markdown import Numbers, markdown, percent, with_interval

COLUMNS = {
    "random": "random",
    "first m": "first",
    "best fixed set": "fixed",
    "best of each video": "best",
    "first m - random": "first_minus_random",
    "fixed set - first m": "fixed_minus_first",
    "best - first m": "best_minus_first",
    "uneven m - first m": "uneven_first_minus_first",
    "uneven, any - first m": "uneven_minus_first",
}


def room_text(summary: Numbers) -> str:
    """Return what every number of target calls gives; empty if not every route was run."""
    if not summary["room"]:
        return ""
    rows = [
        [str(at["calls"]), *(with_interval(at[name], "+" if "minus" in name else "") for name in COLUMNS.values())]
        for at in summary["room"]
    ]
    return (
        "## The room above the first m blocks\n\nOver every route that leaves the target the first block. The best "
        "fixed set is chosen on all other prompts. The best of each video, and no more calls spread unevenly over "
        "videos, are hindsight: no router knows them.\n\n" + markdown(("target calls", *COLUMNS), rows)
    )


def classes_text(summary: Numbers) -> str:
    """Return each gate's share of drafts by class of prompt; empty if the prompts have no classes."""
    if not summary["classes"]:
        return ""
    gates = list(summary["classes"][0]["draft_share"])
    rows = [_class_row(of, gates) for of in summary["classes"]]
    header = ("class", "prompts", "target-only minus draft-only", *gates)
    return f"## By class of prompt\n\nThe share of all blocks whose draft is kept.\n\n{markdown(header, rows)}"


def _class_row(of: Numbers, gates: list[str]) -> list[str]:
    gain = with_interval(of["target_gain"], "+")
    return [of["class"], str(of["prompts"]), gain, *(percent(of["draft_share"][gate]) for gate in gates)]
