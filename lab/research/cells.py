"""Rows of docs/rows as a table, and its cells as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from sdvg_core.errors import BadInput

from .looks import rows_in
from .markdown import markdown
from .protocol import TARGET_ONLY
from .statistics import Interval, NumberOf, Record, Table, make_table, metric

NO_FIGURES = ("way", "prompt", "seed", "route", "cost")
"""Columns of a row that are no figures of its video."""
BY_TARGET = "FtrO"
"""Letters of a route whose blocks are the target's: by rule, by the policy, remade, over a draft."""


def table_of(file: Path, ways: Collection[str] = (), first: int | None = None) -> Table:
    """Return the rows of some ways, or of all: of the prompts that have all by the first seed, every whole seed.

    `first`: of how many prompts at most. Raises `BadInput` if there is no such prompt.
    """
    rows = [_record(row) for row in rows_in(file) if not ways or row["way"] in ways]
    rows = [row for row in rows if first is None or int(row["prompt"]) < first]
    ways = ways or {row["configuration"] for row in rows}
    there = {(row["configuration"], row["prompt"], row["seed"]) for row in rows}
    seeds = list(dict.fromkeys(row["seed"] for row in rows))

    def prompts_of(seed: int) -> list[str]:
        prompts = dict.fromkeys(row["prompt"] for row in rows if row["seed"] == seed)
        return sorted((prompt for prompt in prompts if all((way, prompt, seed) in there for way in ways)), key=int)

    prompts = prompts_of(seeds[0]) if seeds else []
    if not prompts:
        fault = f"{file} lacks rows of {', '.join(sorted(ways)) or 'any way'}"
        raise BadInput(f"{fault}; docs/rows/README.md says which command makes them")
    whole = [seed for seed in seeds if set(prompts) <= set(prompts_of(seed))]
    return make_table([row for row in rows if row["seed"] in whole], prompts, whole)


def _record(row: Mapping[str, str]) -> Record:
    return {
        "configuration": row["way"],
        "prompt": row["prompt"],
        "seed": int(row["seed"]),
        "cost": float(row.get("cost", "nan")),
        "target_calls": float(sum(letter in BY_TARGET for letter in row.get("route", ""))),
        "metrics": {name: float(text) if text else None for name, text in row.items() if name not in NO_FIGURES},
    }


def cost_of(row: Record) -> float:
    """Return the cost of a row, in target blocks."""
    return float(row["cost"])


quality_of = metric("quality")
last_of = metric("last_block_quality")
placed_of = metric("at_its_place")
placed_last_of = metric("last_block_at_its_place")


def cell(figures: Interval | None, form: str = ".2f", bold: bool = False) -> str:
    """Return a figure with its interval; `bold` if that leaves out zero. A dash for none."""
    if figures is None:
        return "-"
    text = f"{figures.value:{form}} [{figures.low:{form}}, {figures.high:{form}}]"
    return f"**{text}**" if bold and not figures.low <= 0 <= figures.high else text


def share(table: Table, way: str) -> str:
    """Return the cost of a way as a share of target-only's."""
    of = table.mean(way, cost_of).value / table.mean(TARGET_ONLY, cost_of).value
    return f"{of:.2f}"


# --- compared


def compared(table: Table, ways: Mapping[str, str], against: str, columns: Mapping[str, NumberOf]) -> str:
    """Return some figures of ways, each beside what it is above another; `ways`: their names on the page."""
    return markdown(head_of(columns, ways[against]), compared_lines(table, ways, against, columns))


def head_of(columns: Iterable[str], against: str) -> tuple[str, ...]:
    """Return the head over `compared_lines`; `against`: the name on the page."""
    return ("route", *(word for head in columns for word in (head, f"minus {against}")))


def compared_lines(
    table: Table, ways: Mapping[str, str], against: str, columns: Mapping[str, NumberOf]
) -> list[list[str]]:
    """Return the lines of `compared`."""
    lines = []
    for way, name in ways.items():
        line = [name]
        for number in columns.values():
            line.append(f"{table.mean(way, number).value:.2f}")
            line.append("-" if way == against else cell(table.difference(way, against, number), "+.2f", bold=True))
        lines.append(line)
    return lines
