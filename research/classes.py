"""The study by class of prompt: who is drafted, and where the target gains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .compare import Table, make_table, metric
from .protocol import DRAFT_ONLY, TARGET_ONLY
from .run import Plan
from .statistics import Interval, as_told
from .store import Record

CLASS = re.compile(r"\[([^\[\]]{1,60})\]\s*(.+)", re.DOTALL)


def read_classes(lines: Iterable[str]) -> dict[str, str | None]:
    """Return the class of each prompt; None for a line without one. A class is written `[animals] a dog runs`."""
    matches = [(line, CLASS.fullmatch(line)) for line in lines]
    return {m[2].strip() if m else line: m[1].strip() if m else None for line, m in matches}


def by_class(rows: Sequence[Record], plan: Plan, quality: str) -> list[dict[str, Any]]:
    """Return for every class its prompts, what the target gains in all, and each gate's share of drafts.

    Nothing if no gate was run, or if the prompts have no classes.
    """
    gates = [c.name for c in plan.configurations if c.group in ("reward-min", "relative")]
    if not gates:
        return []
    names = dict.fromkeys(plan.classes[prompt] for prompt in plan.prompts if prompt in plan.classes)
    return [_of_class(name, rows, plan, quality, gates) for name in names]


def _of_class(name: str, rows: Sequence[Record], plan: Plan, quality: str, gates: Sequence[str]) -> dict[str, Any]:
    prompts = tuple(prompt for prompt in plan.prompts if plan.classes.get(prompt) == name)
    table = make_table([row for row in rows if row["prompt"] in prompts], prompts, plan.seeds)
    ends = {TARGET_ONLY, DRAFT_ONLY} <= table.rows.keys()
    found: dict[str, Any] = as_told(
        {
            "class": name,
            "prompts": len(prompts),
            "target_gain": table.difference(TARGET_ONLY, DRAFT_ONLY, metric(quality)) if ends else None,
            "draft_share": {gate: _draft_share(table, gate) for gate in gates},
        },
        len(prompts),
    )
    return found


def _draft_share(table: Table, gate: str) -> Interval:
    return table.mean(gate, lambda row: sum(row["accepted"]) / len(row["accepted"]))
