"""Tables that the page can sort by any column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .markup import Markup, element, joined


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell shows, and the number it is sorted by; without one, it is sorted by its text."""

    shown: object
    value: float | None = None


NOTHING = Cell("-")


def number(value: object) -> float | None:
    """Return a finite number out of a file; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def figure(value: object, decimals: int = 2, unit: str = "", scale: float = 1.0) -> Cell:
    """Return the cell of a number, or of a study's figure with its interval; a dash for anything else."""
    parts = (value.get("value"), value.get("low"), value.get("high")) if isinstance(value, dict) else (value,)
    known = [number(part) for part in parts]
    if known[0] is None:
        return NOTHING
    texts = [f"{scale * part:.{decimals}f}{unit}" for part in known if part is not None]
    interval = f" [{texts[1]}, {texts[2]}]" if len(texts) == 3 else ""
    return Cell(texts[0] + interval, known[0])


def sortable(caption: str, headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Markup:
    """Return a table whose headers sort it."""
    head = [element("th", element("button", name, type="button"), scope="col") for name in headers]
    body = [element("tr", *(element("td", cell.shown, data_value=cell.value) for cell in row)) for row in rows]
    table = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="sortable",
    )
    wide = element("div", table, class_="wide", tabindex=0, role="region", aria_label=caption)
    return joined((element("h3", caption), wide))
