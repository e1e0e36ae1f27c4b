"""Draw the route of a run: a column per block in the colour of its outcome, and below it its frame scores.

A clip that a film shows between its shots has a column too, with its name, and no colour.

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
from dataclasses import dataclass
from functools import cache
from itertools import chain

from PIL import Image, ImageColor, ImageDraw, ImageFont

from ..engine.records import BlockRecord
from .run_report import RunReport, is_hidden, worst_score
from .summary import OUTCOME_COLOURS, Outcome, acceptance, outcome_of, speed_in_words

Drawing = ImageDraw.ImageDraw
SCALE = 3
PICTURE_WIDTH = 2880
FEWEST_COLUMNS = 5
MARGIN = 60
LEFT = 240
RIGHT = 90
LINE_HEIGHT = 112
STRIP = 135
SCORES = 570
BETWEEN = 54
BELOW = 150
"""Height of the blocks' numbers."""
FONT_SIZE = 90
"""Size of the letters."""
NOTE_LINES = 4
"""Most lines of notes; the record has all of them."""
CLIP_EDGE = 6
"""Width of a clip's outline."""
KEY_HEIGHT = 108
KEY_WIDTH = 60
FRAME = 12
SMALL_FRAME = 4
"""Radii of a frame's dot with few and with many blocks."""
WORST_DOT = 1.9
"""Scale of the worst frame's dot."""
ROOM_FOR_TEXT = 18
"""Most blocks that each have room for their number."""
ROOM_FOR_SCORES = 10
"""Most blocks that each have room for the worst frame's score."""
# Curly quotes, dashes and the minus sign to ASCII.
PLAIN_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"---")
font = cache(ImageFont.load_default)


@dataclass(frozen=True, slots=True)
class Look:
    """Colours of text and axes, secondary text, and background."""

    ink: str
    faint: str
    ground: str


LIGHT = Look("#222222", "#666666", "#FFFFFF")
DARK = Look("#DDDDDD", "#A8A8A8", "#1E1E1E")


class Pen(Drawing):
    """A Pillow drawing with a look, and the marks of the scores and their legend."""

    def __init__(self, image: Image.Image, look: Look) -> None:
        super().__init__(image)
        self.look = look

    def dot(self, x: float, y: float, radius: float, colour: str, edge: int = 0) -> None:
        """Draw a filled circle with an outline of `edge` pixels."""
        self.ellipse([x - radius, y - radius, x + radius, y + radius], colour, self.look.ink, edge)

    def cross(self, x: float, y: float) -> None:
        """Draw a cross of two diagonals."""
        self.line([x - 12, y - 12, x + 12, y + 12], self.look.ink, 4)
        self.line([x - 12, y + 12, x + 12, y - 12], self.look.ink, 4)

    def dashes(self, x: float, y: float, length: float) -> None:
        """Draw a dashed line to the right."""
        for left in range(round(x), round(x + length), 30):
            self.line([left, y, min(left + 20, x + length), y], self.look.ink, 6)


Mark = Callable[[Pen, float, float], None]
"""Function that draws a mark of the legend at its left end and vertical middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The plot of the scores: a column per block, and values from `low` to `high` upwards."""

    pen: Pen
    top: float
    bottom: float
    column: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)


def route_picture(report: RunReport, *, dark: bool = False) -> Image.Image:
    """Return the route picture, RGB. `dark`: with a dark background."""
    look = DARK if dark else LIGHT
    columns = report.shown
    scored = [record for record in report.blocks if record.decision.scored]
    header = _header(report)
    clips = [part for part in columns if isinstance(part, str)]
    legend = _key_rows([*_strip_keys(report.blocks, clips), *(_score_keys(scored) if scored else [])])
    top = MARGIN + LINE_HEIGHT * len(header) + BETWEEN // 2
    foot = top + STRIP + (BETWEEN + SCORES if scored else 0)
    image = Image.new("RGB", (PICTURE_WIDTH, foot + BELOW + KEY_HEIGHT * len(legend)), look.ground)
    pen = Pen(image, look)
    for row, text in enumerate(header):
        write(
            pen,
            MARGIN,
            MARGIN + LINE_HEIGHT * (row + 0.5),
            text,
            FONT_SIZE,
            look.faint if row else look.ink,
            "lm",
        )
    column = (PICTURE_WIDTH - RIGHT - LEFT) / max(len(columns), FEWEST_COLUMNS)
    gap = 0.04 * column if len(columns) <= ROOM_FOR_TEXT else 0.0
    for place, part in enumerate(columns):
        left = LEFT + place * column
        square = [left + gap, top, left + column - gap, top + STRIP]
        if isinstance(part, str):
            pen.rectangle(square, outline=look.faint, width=CLIP_EDGE)
            if len(columns) <= ROOM_FOR_TEXT:
                name = fitted(part, FONT_SIZE, column - 2 * gap - 4 * CLIP_EDGE)
                write(pen, left + column / 2, top + STRIP / 2, name, FONT_SIZE, look.ink)
        else:
            pen.rectangle(square, OUTCOME_COLOURS[outcome_of(part)])
    if scored:
        low, high = _score_range(scored)
        _draw_scores(Panel(pen=pen, top=foot - SCORES, bottom=foot, column=column, low=low, high=high), columns)
    every = 1 if len(columns) <= ROOM_FOR_TEXT else math.ceil(len(columns) / 10)
    for place, part in enumerate(columns):
        number = 0 if isinstance(part, str) else report.number_of(part)
        if number and number % every == 0:
            write(pen, LEFT + (place + 0.5) * column, foot + 60, str(number), FONT_SIZE, look.ink)
    for row, entries in enumerate(legend):
        middle = foot + BELOW + KEY_HEIGHT * (row + 0.5) - 15
        for x, label, mark in entries:
            mark(pen, x, middle)
            write(pen, x + KEY_WIDTH + 24, middle, label, FONT_SIZE, look.ink, "lm")
    return image.reduce(SCALE)


def _header(report: RunReport) -> list[str]:
    """Return the lines above the columns: blocks by the small model, seconds, prompts if not hidden, notes."""
    speed = f", {speed_in_words(report)} (predicted)" if report.speed_up else ""
    prompts = dict.fromkeys(record.prompt for record in report.blocks if not is_hidden(record.prompt))
    seconds = f"{report.seconds.total:.1f} s{speed}" if report.blocks else ""
    lines = [acceptance(report), seconds, " / ".join(prompts)]
    notes = [line for note in report.notes for line in wrapped(note, FONT_SIZE, PICTURE_WIDTH - 2 * MARGIN)]
    if len(notes) > NOTE_LINES:
        notes = [*notes[: NOTE_LINES - 1], " ".join(notes[NOTE_LINES - 1 :])]
    return [fitted(line, FONT_SIZE, PICTURE_WIDTH - 2 * MARGIN) for line in (*lines, *notes) if line]


def _key_rows(keys: Sequence[tuple[str, Mark]]) -> list[list[tuple[float, str, Mark]]]:
    """Lay out the legend: rows of entries with their left ends."""
    rows: list[list[tuple[float, str, Mark]]] = [[]]
    x = float(MARGIN)
    for label, mark in keys:
        wide = KEY_WIDTH + 24 + font(FONT_SIZE).getlength(label)
        if rows[-1] and x + wide > PICTURE_WIDTH - 30:
            rows.append([])
            x = float(MARGIN)
        rows[-1].append((x, label, mark))
        x += wide + 75
    return rows


def _strip_keys(blocks: Sequence[BlockRecord], clips: Sequence[str]) -> list[tuple[str, Mark]]:
    counts = Counter(map(outcome_of, blocks))
    keys = [(f"{kind.value}: {counts[kind]}", _swatch(OUTCOME_COLOURS[kind])) for kind in Outcome if counts[kind]]
    return [*keys, (f"footage: {len(clips)}", _outlined)] if clips else keys


def _outlined(pen: Pen, x: float, y: float) -> None:
    pen.rectangle([x, y - 30, x + KEY_WIDTH, y + 30], outline=pen.look.faint, width=CLIP_EDGE)


def _swatch(colour: str) -> Mark:
    return lambda pen, x, y: pen.rectangle([x, y - 30, x + KEY_WIDTH, y + 30], colour)


def _score_keys(scored: Sequence[BlockRecord]) -> list[tuple[str, Mark]]:
    """Return the legend's entries for the marks that occur."""
    middle = KEY_WIDTH / 2
    keys: list[tuple[str, Mark]] = [
        ("score of a frame", lambda pen, x, y: pen.dot(x + middle, y, FRAME, pen.look.faint)),
        ("weakest frame", lambda pen, x, y: pen.dot(x + middle, y, WORST_DOT * FRAME, pen.look.faint, FRAME // 2)),
    ]
    if not all(map(_is_number, chain.from_iterable(record.decision.frame_scores for record in scored))):
        keys.append(("no score", lambda pen, x, y: pen.cross(x + middle, y)))
    if any(_block_score(record) is not None for record in scored):
        keys.append(("score of the block", lambda pen, x, y: pen.line([x, y, x + KEY_WIDTH, y], pen.look.ink, 10)))
    if thresholds := _thresholds(scored):
        value = "" if len(thresholds) > 1 else f" {thresholds.pop():.2f}"
        keys.append((f"tau{value}", lambda pen, x, y: pen.dashes(x, y, KEY_WIDTH)))
    return keys


def _is_number(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _block_score(record: BlockRecord) -> float | None:
    """Return the score that decided, or None if it is that of the worst frame."""
    return None if record.decision.score == min(record.decision.known_scores) else record.decision.score


def _thresholds(scored: Sequence[BlockRecord]) -> set[float]:
    return {record.decision.threshold for record in scored if record.decision.threshold is not None}


def _score_range(scored: Sequence[BlockRecord]) -> tuple[float, float]:
    """Return the range of the score axis: all finite scores, thresholds near them, and room for text below."""
    scores = [s for record in scored for s in record.decision.known_scores if math.isfinite(s)] or [0.0]
    low = min(scores)
    high = max(scores)
    # Relative too, since adding 1 to a huge number does not change it.
    room = max(high - low, 1.0, 1e-6 * abs(high))
    shown = [low, high, *(value for value in _thresholds(scored) if low - room <= value <= high + room)]
    return min(shown) - 0.3 * room, max(shown) + 0.06 * room


def _draw_scores(panel: Panel, columns: Sequence[BlockRecord | str]) -> None:
    """Draw axis, thresholds and frame scores, each block in the colour of its outcome."""
    pen = panel.pen
    blocks = [
        (LEFT + place * panel.column, part) for place, part in enumerate(columns) if not isinstance(part, str)
    ]
    for number, (left, record) in enumerate(blocks):
        colour = tint(OUTCOME_COLOURS[outcome_of(record)], 0.1, pen.look.ground)
        pen.rectangle([left, panel.top, left + panel.column, panel.bottom], colour)
        if number and record.prompt != blocks[number - 1][1].prompt:
            pen.line([left, panel.top, left, panel.bottom], pen.look.faint, 3)
    pen.line([LEFT, panel.top, LEFT, panel.bottom], pen.look.ink, 3)
    for value, text in _ticks(panel.low, panel.high):
        pen.line([LEFT - 15, panel.y(value), LEFT, panel.y(value)], pen.look.ink, 3)
        write(pen, LEFT - 30, panel.y(value), text, FONT_SIZE, pen.look.ink, "rm")
    radius = FRAME if len(columns) <= ROOM_FOR_TEXT else SMALL_FRAME
    for left, record in blocks:
        threshold = record.decision.threshold
        if threshold is not None and panel.low <= threshold <= panel.high:
            pen.dashes(left, panel.y(threshold), panel.column)
        if record.decision.scored:
            _draw_frames(panel, record, left, radius)
        worst = worst_score(record)
        if len(columns) <= ROOM_FOR_SCORES and math.isfinite(worst):
            write(pen, left + panel.column / 2, panel.bottom - 45, f"{worst:.2f}", FONT_SIZE, pen.look.ink)


def _draw_frames(panel: Panel, record: BlockRecord, left: float, radius: int) -> None:
    """Draw the scores of a block, whose column begins at `left`. `radius`: of a frame's dot."""
    pen = panel.pen
    decision = record.decision
    colour = OUTCOME_COLOURS[outcome_of(record)]
    if (block_score := _block_score(record)) is not None:
        y = panel.y(block_score)
        pen.line([left + 0.1 * panel.column, y, left + 0.9 * panel.column, y], pen.look.ink, 10)
    for frame, score in enumerate(decision.frame_scores):
        x = left + panel.column * (0.1 + 0.8 * (frame + 0.5) / len(decision.frame_scores))
        if score is None or not math.isfinite(score):
            pen.cross(x, panel.bottom - 15)
        elif frame == decision.worst_frame:
            pen.dot(x, panel.y(score), WORST_DOT * radius, colour, radius // 2)
        else:
            pen.dot(x, panel.y(score), radius, colour)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return at most five round values from `low` to `high` with their texts; steps are 1, 2 or 5 times 10**n."""
    power = math.floor(math.log10((high - low) / 5))
    steps = (times * 10.0**p for p in (power, power + 1) for times in (1, 2, 5))
    step = next(step for step in steps if math.floor(high / step) - math.ceil(low / step) < 5)
    digits = max(-math.floor(math.log10(step)), 0)
    whole = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [(i * step, f"{i * step:.{digits}f}") for i in whole]


def tint(colour: str, strength: float, ground: str = LIGHT.ground) -> str:
    """Mix a colour with the background's. `strength`: the colour's share."""
    pairs = zip(ImageColor.getrgb(colour)[:3], ImageColor.getrgb(ground)[:3], strict=True)
    return "#" + "".join(f"{round(below + strength * (part - below)):02X}" for part, below in pairs)


def write(
    pen: Drawing, x: float, y: float, text: str, size: int, colour: str = LIGHT.ink, anchor: str = "mm"
) -> None:
    """Write a line in Pillow's default font; `anchor` as in `ImageDraw.text`."""
    pen.text((x, y), text, colour, font(size), anchor)


def fitted(text: str, size: int, room: float) -> str:
    """Return `text` on one line in drawable letters, cut to `room` pixels."""
    line = drawable(" ".join(text.split()))
    if font(size).getlength(line) <= room:
        return line
    width = lambda letters: font(size).getlength(line[:letters] + "...")  # noqa: E731
    return line[: max(bisect_right(range(len(line)), room, key=width) - 1, 0)] + "..."


def wrapped(text: str, size: int, room: float) -> list[str]:
    """Return `text` on as many lines of `room` pixels as it takes; a word that is longer has a line of its own."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if font(size).getlength(drawable(longer)) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def drawable(text: str) -> str:
    """Return `text` without accents, with `¤` for each letter that Pillow's font lacks."""
    letters = (unicodedata.normalize("NFKD", letter) for letter in text.translate(PLAIN_QUOTES))
    plain = ("".join(part for part in parts if not unicodedata.combining(part)) for parts in letters)
    return "".join(letter if letter.isascii() else "¤" for letter in plain)
