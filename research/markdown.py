"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Numbers = Mapping[str, Any]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_interval(value: Numbers | None, sign: str = "") -> str:
    """Return a figure with its interval, if it has one; `sign` is + to show one always."""
    if value is None:
        return "-"
    if value["low"] is None:
        return f"{value['value']:{sign}.2f}"
    return f"{value['value']:{sign}.2f} [{value['low']:{sign}.2f}, {value['high']:{sign}.2f}]"


def value_text(value: Numbers | None, decimals: int) -> str:
    """Return a figure without its interval."""
    return "-" if value is None else f"{value['value']:.{decimals}f}"


def percent(value: Numbers | None) -> str:
    """Return a share as a percentage."""
    return "-" if value is None else f"{value['value']:.0%}"
