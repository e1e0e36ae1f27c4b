"""Draw the route of a run: a column per block with its outcome, and below it frame scores and threshold.

The width is the same for one block as for a hundred, and the text stays legible at half size. Pillow draws SCALE
times as large and reduces, for smooth edges (a plotting library would be a large dependency); lengths are pixels of
the large drawing. Blocks count from 1.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from PIL import Image, ImageColor, ImageDraw, ImageFont

from ..engine.records import BlockRecord
from .run_report import RunReport, is_hidden
from .summary import COLOURS, INKS, Outcome, acceptance, outcome_of, outcomes, speed_up_line

Drawing = ImageDraw.ImageDraw
SCALE = 3
INK = "#222222"
FAINT = "#666666"
WHITE = "#FFFFFF"
WIDTH = 2880
FEWEST_COLUMNS = 5
LEFT = 330
RIGHT = 90
HEADER = 60
LINE = 112
BOTTOM = 225
STRIP = 135
SCORES = 570
BETWEEN = 54
BIG = 105
SMALL = 90
KEY_HEIGHT = 108
KEY_WIDTH = 60
FRAME = 12
SMALL_FRAME = 4
"""Radii of a frame's dot with few and with many blocks."""
WORST = 1.9
"""Scale of the worst frame's dot."""
PROMPT_LINES = 3
ROOM_FOR_TEXT = 18
"""Most blocks that each have room for their number."""
ROOM_FOR_SCORES = 10
"""Most blocks that each have room for the worst frame's score."""
# Curly quotes, dashes and the minus sign to ASCII.
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"---")


@dataclass(frozen=True, slots=True)
class Look:
    """Colours of text and axes, secondary text, and background."""

    ink: str = INK
    faint: str = FAINT
    ground: str = WHITE


DARK = Look("#DDDDDD", "#A8A8A8", "#1E1E1E")
font = cache(ImageFont.load_default)


class Pen(Drawing):
    """A Pillow drawing with a look."""

    def __init__(self, image: Image.Image, look: Look) -> None:
        super().__init__(image)
        self.look = look


Mark = Callable[[Pen, float, float], None]
"""Function that draws a mark of the legend at its left end and vertical middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A plot area with one column per block from number `first` on, and values from `low` to `high` upwards."""

    pen: Pen
    top: float
    bottom: float
    first: int
    columns: int
    low: float = 0.0
    high: float = 1.0

    @property
    def column(self) -> float:
        """Width of a block's column."""
        return (WIDTH - RIGHT - LEFT) / self.columns

    def x(self, number: float) -> float:
        """Return the horizontal middle of a block."""
        return LEFT + (number - self.first + 0.5) * self.column

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)


def route_picture(report: RunReport, *, dark: bool = False) -> Image.Image:
    """Return the route picture, RGB. `dark`: with a dark background."""
    look = DARK if dark else Look()
    blocks = tuple(
        replace(record, span=replace(record.span, index=report.number_of(record) - 1)) for record in report.blocks
    )
    report = replace(report, blocks=blocks)
    scored = [record for record in blocks if record.decision.scored]
    header = _header(report, look)
    legend = _key_rows([*_strip_keys(blocks), *(_score_keys(scored) if scored else [])])
    top = HEADER + LINE * len(header)
    foot = top + STRIP + (BETWEEN + SCORES if scored else 0)
    image = Image.new("RGB", (WIDTH, foot + BOTTOM + KEY_HEIGHT * len(legend)), look.ground)
    pen = Pen(image, look)
    for i, (text, size, colour) in enumerate(header):
        write(pen, 60, HEADER + LINE * (i + 0.5), text, size, colour, "lm", stroke_width=int(i == 0))
    columns = max(len(blocks), FEWEST_COLUMNS)
    panel = Panel(pen=pen, top=top, bottom=top + STRIP, first=number_of(blocks[0]), columns=columns)
    _draw_strip(panel, blocks)
    if scored:
        panel = replace(panel, top=foot - SCORES, bottom=foot)
        draw_scores(panel, blocks)
    _number_blocks(panel, number_of(blocks[-1]), len(blocks) <= ROOM_FOR_TEXT)
    for row, entries in enumerate(legend):
        middle = foot + BOTTOM + KEY_HEIGHT * (row + 0.5) - 15
        for x, label, mark in entries:
            mark(pen, x, middle)
            write(pen, x + KEY_WIDTH + 24, middle, label, SMALL, look.ink, "lm")
    return image.reduce(SCALE)


def _header(report: RunReport, look: Look) -> list[tuple[str, int, str]]:
    """Return the lines above the panels with their sizes and colours."""
    time = ", ".join(filter(None, (f"{report.seconds.total:.1f} s", speed_up_line(report))))
    title = outcomes(report)
    room = WIDTH - 120
    texts = [(title[0].upper() + title[1:], BIG), (acceptance(report), SMALL), (time, SMALL)]
    lines = [(line, size, look.ink) for text, size in texts for line in wrapped(text, size, room)]
    return [*lines, *((fitted(line, SMALL, room), SMALL, look.faint) for line in _prompt_lines(report.blocks))]


def wrapped(text: str, size: int, room: float) -> list[str]:
    """Wrap `text` at words into lines of at most `room` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font(size).getlength(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [fitted(line, size, room) for line in lines]


def _key_rows(keys: Sequence[tuple[str, Mark]]) -> list[list[tuple[float, str, Mark]]]:
    """Lay out the legend: rows of entries with their left ends."""
    rows: list[list[tuple[float, str, Mark]]] = [[]]
    x = float(LEFT)
    for label, mark in keys:
        wide = KEY_WIDTH + 24 + font(SMALL).getlength(label)
        if rows[-1] and x + wide > WIDTH - 30:
            rows.append([])
            x = float(LEFT)
        rows[-1].append((x, label, mark))
        x += wide + 75
    return rows


def _prompt_lines(blocks: Sequence[BlockRecord]) -> list[str]:
    """Return a line for each prompt that is not hidden, at most `PROMPT_LINES`."""
    groups = groupby(blocks, key=lambda record: record.prompt)
    scenes = [(prompt, next(group)) for prompt, group in groups if not is_hidden(prompt)]
    if len(scenes) == 1:
        return [scenes[0][0]]
    lines = [f"from block {number_of(record)}: {prompt}" for prompt, record in scenes]
    if len(lines) <= PROMPT_LINES:
        return lines
    return [*lines[: PROMPT_LINES - 1], f"and {len(lines) - PROMPT_LINES + 1} more prompts"]


def _draw_strip(panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    roomy = len(blocks) <= ROOM_FOR_TEXT
    half = (0.46 if roomy else 0.5) * panel.column
    for record in blocks:
        x = panel.x(number_of(record))
        outcome = outcome_of(record)
        panel.pen.rectangle([x - half, panel.top, x + half, panel.bottom], COLOURS[outcome])
        if roomy:
            middle = (panel.top + panel.bottom) / 2
            write(panel.pen, x, middle, str(number_of(record)), SMALL, INKS[outcome], stroke_width=1)


def _strip_keys(blocks: Sequence[BlockRecord]) -> list[tuple[str, Mark]]:
    counts = Counter(map(outcome_of, blocks))
    return [(f"{kind.value}: {counts[kind]}", _swatch(COLOURS[kind])) for kind in Outcome if counts[kind]]


# --- the scores


def draw_scores(panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    """Draw frame scores and thresholds, each block in the colour of its outcome. At least one must be scored."""
    pen = panel.pen
    for record in blocks:
        left = panel.x(number_of(record) - 0.5)
        colour = tint(COLOURS[outcome_of(record)], 0.1, pen.look.ground)
        pen.rectangle([left, panel.top, left + panel.column, panel.bottom], colour)
    for before, record in pairwise(blocks):
        if record.prompt != before.prompt:
            x = panel.x(number_of(record) - 0.5)
            for y in range(round(panel.top), round(panel.bottom), 11):
                pen.line([x, y, x, y + 4], pen.look.faint, 3)
    scored = [record for record in blocks if record.decision.scored]
    low, high = score_range(scored)
    panel = replace(panel, low=low, high=high)
    for threshold, group in groupby(blocks, key=lambda record: record.decision.threshold):
        if threshold is not None and low <= threshold <= high:
            records = list(group)
            _threshold(pen, panel.x(number_of(records[0]) - 0.5), panel.y(threshold), panel.column * len(records))
    for record in scored:
        _draw_frames(panel, record, blocks=len(blocks))
    _draw_axis(panel, "frame scores")


def score_range(scored: Sequence[BlockRecord]) -> tuple[float, float]:
    """Return the range of the score axis: all finite scores, thresholds near them, and room for text below."""
    scores = [s for record in scored for s in record.decision.known_scores if math.isfinite(s)] or [0.0]
    low = min(scores)
    high = max(scores)
    # Relative too, since adding 1 to a huge number does not change it.
    room = max(high - low, 1.0, 1e-6 * abs(high))
    thresholds = [t for t in _thresholds(scored) if low - room <= t <= high + room]
    return min([low, *thresholds]) - 0.3 * room, max([high, *thresholds]) + 0.06 * room


def _thresholds(scored: Sequence[BlockRecord]) -> list[float]:
    return [record.decision.threshold for record in scored if record.decision.threshold is not None]


def _draw_frames(panel: Panel, record: BlockRecord, blocks: int) -> None:
    scores = record.decision.frame_scores
    worst = record.decision.worst_frame
    number = number_of(record)
    colour = COLOURS[outcome_of(record)]
    radius = FRAME if blocks <= ROOM_FOR_TEXT else SMALL_FRAME
    if (score := _block_score(record)) is not None:
        _score(panel.pen, panel.x(number - 0.4), panel.y(score), 0.8 * panel.column)
    places = [panel.x(number - 0.4 + 0.8 * (i + 0.5) / len(scores)) for i in range(len(scores))]
    for x, score in zip(places, scores, strict=True):
        if score is None:
            _unscored(panel.pen, x, panel.bottom)
        elif math.isfinite(score):
            dot(panel.pen, x, panel.y(score), radius, colour)
        else:
            _cross(panel.pen, x, panel.bottom)
    lowest = None if worst is None else scores[worst]
    if worst is None or lowest is None or not math.isfinite(lowest):
        return
    x = places[worst]
    y = panel.y(lowest)
    dot(panel.pen, x, y, WORST * radius, colour, edge=radius // 2)
    if blocks <= ROOM_FOR_SCORES:
        margin = max((panel.column - 216) / 2, 0.0)
        middle = min(max(x, panel.x(number) - margin), panel.x(number) + margin)
        text = f"{lowest:.2f}"
        look = panel.pen.look
        write(panel.pen, middle, y + 75, text, SMALL, look.ink, stroke_width=6, stroke_fill=look.ground)


def _block_score(record: BlockRecord) -> float | None:
    """Return the score that decided, or None if it is that of the worst frame."""
    return None if record.decision.score == min(record.decision.known_scores) else record.decision.score


def _score_keys(scored: Sequence[BlockRecord]) -> list[tuple[str, Mark]]:
    """Return the legend's entries for the marks that occur."""
    low, high = score_range(scored)
    middle = KEY_WIDTH / 2
    keys: list[tuple[str, Mark]] = [
        ("a frame", lambda pen, x, y: dot(pen, x + middle, y, FRAME, pen.look.faint)),
        ("weakest frame", lambda pen, x, y: dot(pen, x + middle, y, WORST * FRAME, pen.look.faint, FRAME // 2)),
    ]
    if not all(math.isfinite(score) for record in scored for score in record.decision.known_scores):
        keys.append(("a score that is not finite", lambda pen, x, y: _cross(pen, x + middle, y)))
    if any(None in record.decision.frame_scores for record in scored):
        keys.append(("not scored", lambda pen, x, y: _unscored(pen, x + middle, y)))
    if any(_block_score(record) is not None for record in scored):
        keys.append(("the score of the block", lambda pen, x, y: _score(pen, x, y, KEY_WIDTH)))
    if thresholds := set(_thresholds(scored)):
        value = thresholds.pop()
        outside = "" if low <= value <= high else ", outside"
        label = "threshold" if thresholds else f"threshold {value:.2f}{outside}"
        keys.append((label, lambda pen, x, y: _threshold(pen, x, y, KEY_WIDTH)))
    return keys


def dot(pen: Pen, x: float, y: float, radius: float, colour: str, edge: int = 0) -> None:
    """Draw a filled circle with an outline of `edge` pixels."""
    box = [x - radius, y - radius, x + radius, y + radius]
    pen.ellipse(box, colour, pen.look.ink if edge else None, edge)


def _cross(pen: Pen, x: float, y: float) -> None:
    pen.line([x - 12, y - 12, x + 12, y + 12], pen.look.ink, 4)
    pen.line([x - 12, y + 12, x + 12, y - 12], pen.look.ink, 4)


def _unscored(pen: Pen, x: float, y: float) -> None:
    pen.line([x - 12, y, x + 12, y], pen.look.faint, 4)


def _score(pen: Pen, x: float, y: float, length: float) -> None:
    pen.line([x, y, x + length, y], pen.look.ink, 10)


def _threshold(pen: Pen, x: float, y: float, length: float) -> None:
    for left in range(round(x), round(x + length), 30):
        pen.line([left, y, min(left + 20, x + length), y], pen.look.ink, 6)


# --- axes, legends, letters


def _draw_axis(panel: Panel, title: str) -> None:
    """Draw the value axis at the left of the panel."""
    pen = panel.pen
    ink = pen.look.ink
    pen.line([LEFT - 1, panel.top, LEFT - 1, panel.bottom], ink, 3)
    room = int((panel.bottom - panel.top) / SMALL)
    for value, text in nice_ticks(panel.low, panel.high, most=min(5, room)):
        pen.line([LEFT - 15, panel.y(value), LEFT, panel.y(value)], ink, 3)
        write(pen, LEFT - 30, panel.y(value), text, SMALL, ink, "rm")
    turned = ImageFont.TransposedFont(font(SMALL), Image.Transpose.ROTATE_90)
    middle = (panel.top + panel.bottom - font(SMALL).getlength(title)) / 2
    pen.text((LEFT - 300, middle), title, ink, turned)


def _number_blocks(panel: Panel, last: int, roomy: bool) -> None:
    """Write block numbers below the panel; `roomy`: all of them, else only round ones."""
    every = [(number, str(number)) for number in range(panel.first, last + 1)]
    for number, text in every if roomy else nice_ticks(panel.first, last, most=10):
        write(panel.pen, panel.x(number), panel.bottom + 60, text, SMALL, panel.pen.look.ink)
    write(panel.pen, (LEFT + WIDTH - RIGHT) / 2, panel.bottom + 160, "block", SMALL, panel.pen.look.ink)


def _swatch(colour: str) -> Mark:
    return lambda pen, x, y: pen.rectangle([x, y - 30, x + KEY_WIDTH, y + 30], colour)


def nice_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return at most `most` round values from `low` to `high` with their texts; steps are 1, 2 or 5 times 10**n."""
    power = math.floor(math.log10((high - low) / most))
    steps = (times * 10.0**p for p in (power, power + 1) for times in (1, 2, 5))
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < most)
    digits = max(-math.floor(math.log10(step)), 0)
    whole = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [(i * step, f"{i * step:.{digits}f}") for i in whole]


def number_of(record: BlockRecord) -> int:
    """Return the block's number, from 1."""
    return record.span.index + 1


def tint(colour: str, strength: float, ground: str = WHITE) -> str:
    """Mix a colour with the background's. `strength`: the colour's share."""
    pairs = zip(ImageColor.getrgb(colour)[:3], ImageColor.getrgb(ground)[:3], strict=True)
    return "#" + "".join(f"{round(below + strength * (part - below)):02X}" for part, below in pairs)


def write(
    pen: Drawing, x: float, y: float, text: str, size: int, colour: str = INK, anchor: str = "mm", **stroke: Any
) -> None:
    """Write a line in Pillow's default font; `anchor` and `stroke` as in `ImageDraw.text`."""
    pen.text((x, y), text, colour, font(size), anchor, **stroke)


def fitted(text: str, size: int, room: float) -> str:
    """Return `text` on one line in drawable letters, cut to `room` pixels."""
    line = drawable(" ".join(text.split()))
    if font(size).getlength(line) <= room:
        return line
    width = lambda letters: font(size).getlength(line[:letters] + "...")  # noqa: E731
    return line[: max(bisect_right(range(len(line)), room, key=width) - 1, 0)] + "..."


def drawable(text: str) -> str:
    """Return `text` without accents, with `¤` for each letter that Pillow's font lacks."""
    letters = (unicodedata.normalize("NFKD", letter) for letter in text.translate(PLAIN))
    plain = ("".join(part for part in parts if not unicodedata.combining(part)) for parts in letters)
    return "".join(letter if letter.isascii() else "¤" for letter in plain)
