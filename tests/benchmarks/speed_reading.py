"""How tests read a page of speeds: its table's cells."""

from __future__ import annotations

from typing import Any

from speed_results import result

from benchmarks.speed_table import COLUMNS, section

NOT_MEASURED = "not a measurement of speed"


def rows(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The first table of a section: its cells by column, by execution and route."""
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    end = next(i for i, cells in enumerate(table) if "peak memory of" in cells[0])
    assert tuple(table[0]) == COLUMNS
    return {(cells[0], cells[1]): dict(zip(COLUMNS, cells, strict=True)) for cells in table[2:end]}


def row_at(ratio: float, route: str = "r=1", execution: str = "ours", **changes: Any) -> dict[str, str]:
    """The row of a route that is `ratio` times as fast as target-only."""
    seconds = {(execution, "target-only"): ratio, (execution, route): 1.0}
    return rows(section("run", result(seconds, **changes)))[execution, route]
