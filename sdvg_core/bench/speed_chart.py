"""A run of the benchmark as a bar chart: how many times as fast as target-only each route was, by execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from textwrap import wrap
from typing import Any

from PIL import Image

from ..report.canvas import FAINT, INK, WHITE, Canvas, dashes, tint
from ..report.lettering import text_width
from ..report.picture_panel import KEY_SIZE, KEY_WIDTH, TICK_SIZE, Mark, nice_ticks, swatch
from .goals import Goal, goals_of, not_a_measurement
from .routes import TARGET_ONLY
from .table import headline

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; pale where these do not suffice.
STRONG = ("#0072B2", "#009E73", "#E69F00", "#CC79A7", "#999999", "#56B4E9", "#D55E00")
COLOURS = (*STRONG, *(tint(colour, 0.45) for colour in STRONG))
GRID, WARNING = "#E6E6E6", "#B03A00"
# Pixels: of the sheet, of its lines, of a route's rows.
WIDTH, MARGIN, LEFT, RIGHT = 880, 20, 262, 850
LINE, KEY_GAP, FOOT = 24, 22, 58
ROW, BAR, LABEL_LINE, BETWEEN = 18, 14, 17, 16
OVERHANG = 4
DASH, DASH_GAP = 5.0, 3.0
# Of a line of conditions.
LETTERS = 125

Key = tuple[str, Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A route's bars. `ratios`: to target-only by execution; None where that was not made."""

    route: str
    ratios: Mapping[str, float | None]
    limit: float | None
    goal: Goal | None

    @property
    def values(self) -> tuple[float, ...]:
        """Everything that is drawn of it."""
        published = [self.goal.published] if self.goal else []
        return tuple(value for value in (*self.ratios.values(), self.limit, *published) if value is not None)

    @property
    def labels(self) -> tuple[str, ...]:
        """What its marks stand for, in words."""
        published = (f"published {self.goal.printed}",) if self.goal else ()
        return (*published, *((f"limit {self.limit:.1f}x",) if self.limit else ()))

    @property
    def height(self) -> int:
        """Pixels."""
        return max(ROW * len(self.ratios), LABEL_LINE * (1 + len(self.labels)))


def groups_of(result: Mapping[str, Any]) -> tuple[Group, ...]:
    """Return the routes of a run but target-only, which all are held against, in the order they were made in."""
    goals, cases = goals_of(result), [case for case in result["cases"] if case["route"] != TARGET_ONLY]
    limits = {case["route"]: case["limit"] for case in cases}
    return tuple(
        Group(
            route=route,
            ratios={case["execution"]: case["ratio_to_target_only"] for case in cases if case["route"] == route},
            limit=limit,
            goal=goals.get(route),
        )
        for route, limit in limits.items()
    )


def speed_chart(result: Mapping[str, Any]) -> Image.Image:
    """Return the chart of one run, RGB; the more bars, the higher."""
    groups = groups_of(result)
    executions = dict.fromkeys(case["execution"] for case in result["cases"])
    colours = dict(zip(executions, cycle(COLOURS), strict=False))
    heading, keys = _heading(result), (*_rows(_keys_of_bars(colours)), *_rows(_keys_of_marks(groups)))
    top = MARGIN + LINE * (len(heading) + len(keys)) + BETWEEN
    bottom = top + sum(group.height + BETWEEN for group in groups)
    canvas = Canvas(WIDTH, bottom + FOOT)
    _draw_lines(canvas, heading)
    for i, row in enumerate(keys):
        _draw_keys(canvas, MARGIN + LINE * (len(heading) + i + 0.5), row)
    high = 1.02 * max([1.0, *(value for group in groups for value in group.values)])
    _draw_axis(canvas, top, bottom, high)
    for group in groups:
        _draw_group(canvas, group, top + BETWEEN / 2, high, colours)
        top += group.height + BETWEEN
    return canvas.finished()


def _x(value: float, high: float) -> float:
    return LEFT + value / high * (RIGHT - LEFT)


def _heading(result: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    warnings = [
        not_a_measurement(result),
        "Interrupted: some videos were not made." if result["interrupted"] else None,
    ]
    return [
        ("Speed-up over target-only, by route", 20, INK),
        *((warning, 16, WARNING) for warning in warnings if warning),
        *((line, 13, FAINT) for line in wrap(headline(result), LETTERS)),
    ]


def _draw_lines(canvas: Canvas, lines: Sequence[tuple[str, int, str]]) -> None:
    for i, (text, size, colour) in enumerate(lines):
        y = MARGIN + LINE * (i + 0.5)
        canvas.text(MARGIN, y, text, size, colour, align=0.0, room=WIDTH - 2 * MARGIN, bold=size > KEY_SIZE)


def _keys_of_bars(colours: Mapping[str, str]) -> list[Key]:
    return [(execution, swatch(colour)) for execution, colour in colours.items()]


def _keys_of_marks(groups: Sequence[Group]) -> list[Key]:
    """Return what the legend explains of the marks: only what is there."""
    middle, arm = KEY_WIDTH / 2, 8
    keys: list[Key] = []
    if any(group.goal for group in groups):
        keys.append(("published, not measured here", lambda c, x, y: _published(c, x + middle, y - arm, y + arm)))
    if any(group.limit for group in groups):
        keys.append(("limit, if drafts took no time", lambda c, x, y: _limit(c, x + middle, y - arm, y + arm)))
    keys.append(("target-only in the same execution", lambda c, x, y: _one(c, x + middle, y - arm, y + arm)))
    return keys


def _rows(keys: Sequence[Key]) -> list[list[Key]]:
    """Return a legend in as many lines as it needs."""
    rows: list[list[Key]] = [[]]
    for key in keys:
        if rows[-1] and sum(map(_width, (*rows[-1], key))) > WIDTH - 2 * MARGIN:
            rows.append([])
        rows[-1].append(key)
    return rows


def _width(key: Key) -> float:
    return KEY_WIDTH + 6 + text_width(key[0], KEY_SIZE) + KEY_GAP


def _draw_keys(canvas: Canvas, y: float, keys: Sequence[Key]) -> None:
    x: float = MARGIN
    for label, mark in keys:
        mark(canvas, x, y)
        canvas.text(x + KEY_WIDTH + 6, y, label, KEY_SIZE, align=0.0)
        x += _width((label, mark))


def _draw_axis(canvas: Canvas, top: float, bottom: float, high: float) -> None:
    for value, text in nice_ticks(0, high, most=10):
        x = _x(value, high)
        canvas.box(x - 0.5, top, x + 0.5, bottom + 5, GRID)
        canvas.text(x, bottom + 15, f"{text}x", TICK_SIZE)
    _one(canvas, _x(1, high), top, bottom)
    canvas.box(LEFT - 1, top, LEFT, bottom, INK)
    canvas.text((LEFT + RIGHT) / 2, bottom + 38, "times as fast as target-only in the same execution", TICK_SIZE)


def _draw_group(canvas: Canvas, group: Group, top: float, high: float, colours: Mapping[str, str]) -> None:
    bottom, rows = top + group.height, ROW * len(group.ratios)
    canvas.text(MARGIN, top + LABEL_LINE / 2, group.route, 15, align=0.0, bold=True)
    for i, label in enumerate(group.labels, 1):
        canvas.text(MARGIN, top + LABEL_LINE * (i + 0.5), label, 12, FAINT, align=0.0)
    for i, (execution, ratio) in enumerate(group.ratios.items()):
        y = top + (group.height - rows) / 2 + ROW * (i + 0.5)
        canvas.text(LEFT - 8, y, "-" if ratio is None else f"{ratio:.2f}x", 12, align=1.0)
        if ratio is not None:
            canvas.box(LEFT, y - BAR / 2, _x(ratio, high), y + BAR / 2, colours[execution])
    if group.limit:
        _limit(canvas, _x(group.limit, high), top - OVERHANG, bottom + OVERHANG)
    if group.goal:
        _published(canvas, _x(group.goal.published, high), top - OVERHANG, bottom + OVERHANG)


def _published(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    canvas.box(x - 2, top, x + 2, bottom, WHITE)
    canvas.box(x - 1, top, x + 1, bottom, INK)


def _limit(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    for start, end in dashes(top, bottom, DASH, DASH_GAP):
        canvas.box(x - 1, start, x + 1, end, INK)


def _one(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    canvas.box(x - 0.5, top, x + 0.5, bottom, FAINT)
