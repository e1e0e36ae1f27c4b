"""The panel of the route's picture with every frame's score and the threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from ..engine.records import BlockRecord
from .canvas import FAINT, INK, Canvas, dashes, tint
from .picture_panel import KEY_WIDTH, ROOM_FOR_TEXT, Mark, Panel, draw_axis, explain, number_of
from .summary import COLOURS, fate_of

# Radii, and how much larger the worst frame is drawn than the others.
FRAME, SMALL_FRAME, WORST = 2.6, 1.4, 1.6
ARM = 4.0
DASH, GAP = 7.0, 3.0
NUMBER_SIZE, NUMBER_WIDTH = 12, 36


def draw_scores(canvas: Canvas, panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    """Draw the scores of all blocks, each in its own column, in the colour of the block's fate."""
    for record in blocks:
        left, colour = _left_of(panel, record), tint(COLOURS[fate_of(record)], 0.1)
        canvas.box(left, panel.top, left + panel.column, panel.bottom, colour)
    for before, record in pairwise(blocks):
        if record.prompt != before.prompt:
            x = _left_of(panel, record)
            for top, bottom in dashes(panel.top, panel.bottom, 1.5, 2.0):
                canvas.box(x - 0.5, top, x + 0.5, bottom, FAINT)
    scored = [record for record in blocks if record.decision.scored]
    if not scored:
        middle = ((panel.left + panel.right) / 2, (panel.top + panel.bottom) / 2)
        canvas.text(*middle, "no block was scored", 15, FAINT)
        return
    low, high = score_range(scored)
    panel = replace(panel, low=low, high=high)
    _draw_thresholds(canvas, panel, blocks)
    for record in scored:
        _draw_frames(canvas, panel, record, roomy=len(blocks) <= ROOM_FOR_TEXT)
    draw_axis(canvas, panel, "frame scores")
    explain(canvas, panel, _keys(scored, low, high), at_bottom=True)


def score_range(scored: Sequence[BlockRecord]) -> tuple[float, float]:
    """Return the ends of the score axis: all finite scores, thresholds near them, and room for a number below."""
    scores = [s for record in scored for s in record.decision.frame_scores if math.isfinite(s)] or [0.0]
    low, high = min(scores), max(scores)
    # A millionth, since adding 1 to a huge number does not change it.
    room = max(high - low, 1.0, 1e-6 * abs(high))
    thresholds = [t for t in _thresholds(scored) if low - room <= t <= high + room]
    return min([low, *thresholds]) - 0.12 * room, max([high, *thresholds]) + 0.06 * room


def _thresholds(scored: Sequence[BlockRecord]) -> list[float]:
    return [record.decision.threshold for record in scored if record.decision.threshold is not None]


def _left_of(panel: Panel, record: BlockRecord) -> float:
    return panel.x(number_of(record) - 0.5)


def _draw_thresholds(canvas: Canvas, panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    for threshold, alike in groupby(blocks, key=lambda record: record.decision.threshold):
        records = list(alike)
        if threshold is not None and panel.low <= threshold <= panel.high:
            left = _left_of(panel, records[0])
            _threshold(canvas, left, panel.y(threshold), panel.column * len(records))


def _draw_frames(canvas: Canvas, panel: Panel, record: BlockRecord, roomy: bool) -> None:
    scores, worst = record.decision.frame_scores, record.decision.worst_frame
    number, colour, radius = number_of(record), COLOURS[fate_of(record)], FRAME if roomy else SMALL_FRAME
    if (score := _block_score(record)) is not None:
        _score(canvas, panel.x(number - 0.4), panel.y(score), 0.8 * panel.column)
    places = [panel.x(number - 0.4 + 0.8 * (i + 0.5) / len(scores)) for i in range(len(scores))]
    for x, score in zip(places, scores, strict=True):
        if math.isfinite(score):
            canvas.dot(x, panel.y(score), radius, colour)
        else:
            canvas.cross(x, panel.bottom, ARM)
    if worst is None or not math.isfinite(scores[worst]):
        return
    x, y = places[worst], panel.y(scores[worst])
    canvas.dot(x, y, WORST * radius, colour, edge=0.7 * radius)
    if roomy:
        aside = max((panel.column - NUMBER_WIDTH) / 2, 0.0)
        middle = min(max(x, panel.x(number) - aside), panel.x(number) + aside)
        canvas.text(middle, y + 16, f"{scores[worst]:.2f}", NUMBER_SIZE, halo=True)


def _block_score(record: BlockRecord) -> float | None:
    """Return the score that decided about the block, if it is not its worst frame's."""
    return None if record.decision.score == min(record.decision.frame_scores) else record.decision.score


def _threshold(canvas: Canvas, x: float, y: float, length: float) -> None:
    for left, right in dashes(x, x + length, DASH, GAP):
        canvas.box(left, y - 1, right, y + 1, INK)


def _score(canvas: Canvas, x: float, y: float, length: float) -> None:
    canvas.box(x, y - 1.7, x + length, y + 1.7, INK)


def _keys(scored: Sequence[BlockRecord], low: float, high: float) -> list[tuple[str, Mark]]:
    """Return the entries of the legend: only for marks that occur."""
    middle = KEY_WIDTH / 2
    keys: list[tuple[str, Mark]] = [
        ("a frame", lambda canvas, x, y: canvas.dot(x + middle, y, FRAME, FAINT)),
        ("the worst frame of its block", lambda c, x, y: c.dot(x + middle, y, WORST * FRAME, FAINT, 0.7 * FRAME)),
    ]
    if not all(math.isfinite(score) for record in scored for score in record.decision.frame_scores):
        keys.append(("a score that is not finite", lambda canvas, x, y: canvas.cross(x + middle, y, ARM)))
    if any(_block_score(record) is not None for record in scored):
        keys.append(("the score of the block", lambda canvas, x, y: _score(canvas, x, y, KEY_WIDTH)))
    if thresholds := set(_thresholds(scored)):
        label = "threshold" if len(thresholds) > 1 else _in_words(thresholds.pop(), low, high)
        keys.append((label, lambda canvas, x, y: _threshold(canvas, x, y, KEY_WIDTH)))
    return keys


def _in_words(threshold: float, low: float, high: float) -> str:
    return f"threshold {threshold:.2f}{'' if low <= threshold <= high else ', outside'}"
