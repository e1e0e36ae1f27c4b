"""Tables and figures as Markdown, for the pages of the study and of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Numbers = Mapping[str, Any]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table that is also readable as it is. The first `words` columns hold text, the others numbers."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width if place < words else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = [
        [cell.ljust(width) if place < words else cell.rjust(width) for place, (cell, width) in enumerate(pairs)]
        for pairs in (list(zip(line, widths, strict=True)) for line in (header, rule, *rows))
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_interval(value: Numbers | None, sign: str = "") -> str:
    """Return a figure with its interval, if it has one; `sign` is + to show one always."""
    if value is None:
        return "-"
    ends = "" if value["low"] is None else f" [{value['low']:{sign}.2f}, {value['high']:{sign}.2f}]"
    return f"{value['value']:{sign}.2f}{ends}"


def figure(value: Numbers | None, form: str) -> str:
    """Return a figure without its interval; `form`: as in a format string."""
    return "-" if value is None else f"{value['value']:{form}}"


def number(value: float | None, decimals: int, unit: str = "") -> str:
    """Return a number with its unit, or a dash."""
    return "-" if value is None else f"{value:.{decimals}f}{unit}"
