"""A run of the benchmark as a bar chart: how many times as fast as target-only each route was, by execution."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from research.plots import DOTS_PER_INCH, STYLE

from .goals import goals_of, not_a_measurement
from .routes import TARGET_ONLY
from .table import headline

WIDTH = 9.0
# In inches: a bar, and everything around the bars.
BAR, AROUND = 0.2, 3.0
# Okabe and Ito's colours and grey, one per execution in turn.
COLOURS = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#999999", "#56B4E9", "#D55E00", "#F0E442")
MARK = {"colors": "#222222", "linewidth": 2}


def limits_of(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the routes compared with target-only, in the order they were run, and their limits."""
    return {case["route"]: case["limit"] for case in result["cases"] if case["route"] != TARGET_ONLY}


def speed_chart(result: Mapping[str, Any]) -> Figure:
    """Return the chart of one run; it is taller with more bars."""
    limits, goals = limits_of(result), goals_of(result)
    executions = list(dict.fromkeys(case["execution"] for case in result["cases"]))
    with rc_context(STYLE):
        height = AROUND + BAR * (len(executions) + 1) * len(limits)
        figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for number, execution in enumerate(executions):
            _draw_bars(axes, result, execution, number, len(executions))
        published = {route: goals[route].published for route in limits if route in goals}
        _draw_marks(axes, limits, published, "solid", "published, not measured here")
        _draw_marks(axes, limits, limits, "dashed", "limit, if drafts took no time")
        axes.axvline(1, color="#777777", linewidth=1)
        axes.set_xlim(left=0)
        axes.margins(x=0.1)
        axes.set_yticks(range(len(limits)), list(limits))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("times as fast as target-only in the same execution")
        axes.set_title(_title(result), fontsize=10, fontweight="normal")
        figure.legend(loc="outside lower left", ncols=3, frameon=False)
    return figure


def _draw_bars(axes: Any, result: Mapping[str, Any], execution: str, number: int, of: int) -> None:
    """Draw an execution's bars, or a dash where there is no ratio."""
    places = {route: place for place, route in enumerate(limits_of(result))}
    made = [c for c in result["cases"] if c["execution"] == execution and c["route"] in places]
    ratios = [case["ratio_to_target_only"] for case in made]
    thickness = 1 / (of + 1)
    where = [places[case["route"]] + (number - (of - 1) / 2) * thickness for case in made]
    colour = COLOURS[number % len(COLOURS)]
    bars = axes.barh(where, [ratio or 0 for ratio in ratios], thickness, color=colour, label=execution)
    axes.bar_label(bars, ["-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios], padding=4, fontsize=9)


def _draw_marks(
    axes: Any, routes: Mapping[str, Any], marks: Mapping[str, float | None], line: str, label: str
) -> None:
    found = [(value, place) for place, route in enumerate(routes) if (value := marks.get(route)) is not None]
    if found:
        values, places = zip(*found, strict=True)
        tops, bottoms = [place - 0.5 for place in places], [place + 0.5 for place in places]
        axes.vlines(values, tops, bottoms, linestyles=line, label=label, **MARK)


def _title(result: Mapping[str, Any]) -> str:
    lines = ["Speed-up over target-only, by route", not_a_measurement(result)]
    lines += ["Interrupted: some videos were not made."] if result["interrupted"] else []
    return "\n".join(filter(None, [*lines, *wrap(headline(result), 100)]))
