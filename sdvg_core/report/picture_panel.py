"""One panel of the route's picture: the positions of blocks and values, the axis and the legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..engine.records import BlockRecord
from .canvas import INK, Canvas

# Up to this many blocks, each has room for its own letter and number.
ROOM_FOR_TEXT = 32
TICK_SIZE, KEY_SIZE = 13, 13
KEY_HEIGHT, KEY_WIDTH = 19, 17

# Draws a legend's mark, given the position of its left end and of its middle.
Mark = Callable[[Canvas, float, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A rectangle of the picture, in pixels: `columns` blocks from number `first` on across it, values upwards."""

    left: float
    right: float
    top: float
    bottom: float
    first: int
    columns: int
    low: float = 0.0
    high: float = 1.0

    @property
    def column(self) -> float:
        """The width of a block."""
        return (self.right - self.left) / self.columns

    def x(self, number: float) -> float:
        """Return the position of the middle of a block."""
        return self.left + (number - self.first + 0.5) * self.column

    def y(self, value: float) -> float:
        """Return the position of a value."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)


def draw_axis(canvas: Canvas, panel: Panel, title: str) -> None:
    """Draw the axis of the values, to the left of the panel."""
    canvas.box(panel.left - 1, panel.top, panel.left, panel.bottom, INK)
    for value, text in nice_ticks(panel.low, panel.high, most=6):
        y = panel.y(value)
        canvas.box(panel.left - 5, y - 0.5, panel.left, y + 0.5, INK)
        canvas.text(panel.left - 10, y, text, TICK_SIZE, align=1.0)
    canvas.text(panel.left - 48, (panel.top + panel.bottom) / 2, title, TICK_SIZE, turned=True)


def number_blocks(canvas: Canvas, panel: Panel, last: int) -> None:
    """Write the blocks' numbers below the panel, or only round ones if there is no room for all."""
    every = [(number, str(number)) for number in range(panel.first, last + 1)]
    for number, text in every if len(every) <= ROOM_FOR_TEXT else nice_ticks(panel.first, last, most=10):
        canvas.text(panel.x(number), panel.bottom + 15, text, TICK_SIZE)
    canvas.text((panel.left + panel.right) / 2, panel.bottom + 36, "block", TICK_SIZE)


def explain(canvas: Canvas, panel: Panel, keys: Sequence[tuple[str, Mark]], at_bottom: bool = False) -> None:
    """Put a legend to the right of a panel."""
    top = panel.bottom - KEY_HEIGHT * len(keys) if at_bottom else panel.top + 6
    for i, (label, mark) in enumerate(keys):
        y = top + KEY_HEIGHT * (i + 0.5)
        mark(canvas, panel.right + 11, y)
        canvas.text(panel.right + 20 + KEY_WIDTH, y, label, KEY_SIZE, align=0.0)


def swatch(colour: str) -> Mark:
    """Return a filled mark of one colour."""
    return lambda canvas, x, y: canvas.box(x, y - 4, x + KEY_WIDTH, y + 4, colour)


def nice_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return at most `most` round values from `low` to `high`, each with its text.

    They are 1, 2 or 5 apart, times a power of ten.
    """
    power = math.floor(math.log10((high - low) / most))
    steps = (times * 10.0**p for p in (power, power + 1) for times in (1, 2, 5))
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < most)
    digits = max(-math.floor(math.log10(step)), 0)
    whole = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [(i * step, f"{i * step:.{digits}f}") for i in whole]


def number_of(record: BlockRecord) -> int:
    """Return the block's number, counted from 1."""
    return record.span.index + 1
