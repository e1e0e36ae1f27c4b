"""The printed ways on a few prompts, each beside what docs/study.md prints: a look at the study in ten minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from sdvg_core.errors import BadInput

from .cells import cost_of, quality_of, table_of
from .looks import ROWS
from .markdown import markdown, with_interval
from .protocol import TARGET_ONLY
from .statistics import ENOUGH, Interval, Record, Table, as_json, cost_with, make_table, too_few
from .tables import PRINTED

QUICK_PROMPTS = 12
QUICK_SEED = 42


def quick_text(
    rows: Sequence[Record], prompts: Sequence[str], weights: Mapping[str, float], folder: Path = ROWS
) -> str:
    """Return the ways' figures on the first of the page's prompts, those of its rows of the same, and its own.

    Raises `BadInput` for more prompts than the page has.
    """
    printed = table_of(folder / "ways.csv", PRINTED)
    if len(prompts) > len(printed.prompts):
        raise BadInput(
            f"the page has {len(printed.prompts)} prompts; give --prompts {len(printed.prompts)} or fewer"
        )
    same = _first(printed, len(prompts))
    cost = cost_with(weights)
    priced = [{**row, "cost": cost(row)} for row in rows]
    here = make_table(priced, prompts, (QUICK_SEED,))
    lines = [
        [
            way,
            f"{here.mean(way, quality_of).value:.2f}",
            f"{same.mean(way, quality_of).value:.2f}",
            f"{printed.mean(way, quality_of).value:.2f}",
            *(_minus_target(table, way) for table in (here, printed)),
            *(f"{_share(table, way):.2f}" for table in (here, printed)),
        ]
        for way in PRINTED
    ]
    head = (
        "way", "quality, dB", "the page's rows of these", "the page", "minus target-only", "the page", "cost",
        "the page",
    )  # fmt: skip
    return f"{_sentences(here, same, printed)}\n\n{markdown(head, lines)}\n"


def _first(table: Table, count: int) -> Table:
    """Return the rows of the first prompts with the quick look's seed."""
    rows = [table.rows[way][prompt, QUICK_SEED] for way in table.rows for prompt in table.prompts[:count]]
    return make_table(rows, table.prompts[:count], (QUICK_SEED,))


def _minus_target(table: Table, way: str) -> str:
    if way == TARGET_ONLY:
        return "-"
    difference = as_json(table.difference(way, TARGET_ONLY, quality_of), len(table.prompts))
    return with_interval(difference, sign="+")


def _share(table: Table, way: str) -> float:
    return table.mean(way, cost_of).value / table.mean(TARGET_ONLY, cost_of).value


def _width(figures: Interval) -> float:
    return figures.high - figures.low


def _sentences(here: Table, same: Table, printed: Table) -> str:
    count, whole = len(here.prompts), len(printed.prompts)
    off = max(
        float(abs(here.per_prompt(way, quality_of) - same.per_prompt(way, quality_of)).max()) for way in PRINTED
    )
    opening = (
        f"# {len(PRINTED)} ways, the first {count} of the page's {whole} prompts, seed {QUICK_SEED}\n\n"
        f"No video differs by more than {off:.3f} dB from the page's own row of it."
    )
    if count < ENOUGH:
        return f"{opening} {too_few(count)}."
    widths = [
        fmean(_width(table.difference(way, TARGET_ONLY, quality_of)) for way in PRINTED if way != TARGET_ONLY)
        for table in (here, printed)
    ]
    return (
        f"{opening} Intervals over so few prompts are rough: of *minus target-only* they are {widths[0]:.2f} dB "
        f"wide on average, and {widths[1]:.2f} on the page. They shrink with the root of the prompts: {whole} make "
        f"them {math.sqrt(whole / count):.1f} times as narrow."
    )
