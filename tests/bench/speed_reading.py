"""How tests read a page of speeds and its chart: a table's cells, and the lengths of bars."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageColor
from speed_results import result

from sdvg_core.bench import speed_chart as chart
from sdvg_core.bench.speed_table import COLUMNS, section

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


def bar_ends(image: Image.Image, colour: str) -> list[int]:
    """The last pixel of every bar of a colour, from the axis on, from above."""
    # Smoothing leaves an edge not quite in its colour.
    off = np.asarray(image)[:, chart.LEFT :].astype(int) - ImageColor.getrgb(colour)
    plot = (abs(off) < 40).all(axis=2)
    starts = [y for y in range(1, len(plot)) if plot[y, 2] and not plot[y - 1, 2]]
    return [int(np.flatnonzero(plot[y + chart.BAR // 2]).max()) + 1 for y in starts]
