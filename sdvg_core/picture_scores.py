"""The panel of the route's picture that shows every frame's score against the threshold."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from .fates import COLOURS, fate_of
from .records import BlockRecord

INK, FAINT = "#222222", "#777777"
# Up to so many blocks, each has room for a letter and a number of its own.
ROOM_FOR_TEXT = 32
THRESHOLD = {"color": INK, "linewidth": 1.4, "linestyle": "--"}
SCORE = {"color": INK, "linewidth": 2.5}


def draw_scores(panel: Any, blocks: tuple[BlockRecord, ...]) -> None:
    """Draw the scores of all blocks, each over its own column in the colour of its fate."""
    scored = [record for record in blocks if record.decision.scored]
    for record in blocks:
        number = number_of(record)
        panel.axvspan(number - 0.5, number + 0.5, color=COLOURS[fate_of(record)], alpha=0.1, linewidth=0)
    for before, record in pairwise(blocks):
        if record.prompt != before.prompt:
            panel.axvline(number_of(record) - 0.5, color=FAINT, linewidth=1, linestyle=":")
    if not scored:
        panel.text(
            0.5, 0.5, "no block was scored", transform=panel.transAxes, ha="center", va="center", color=FAINT
        )
        panel.set_yticks([])
        return
    panel.set_ylabel("frame scores", fontsize=9, color=INK)
    low, high = score_range(scored)
    panel.set_ylim(low, high)
    for record in scored:
        _draw_frames(panel, record, low, roomy=len(blocks) <= ROOM_FOR_TEXT)
    explain(panel, _keys(scored, low, high), top=0.0, anchor="lower left")


def score_range(scored: list[BlockRecord]) -> tuple[float, float]:
    """Return the ends of the score axis: all finite scores, thresholds near them, and room for a number below."""
    scores = [s for record in scored for s in record.decision.frame_scores if math.isfinite(s)] or [0.0]
    low, high = min(scores), max(scores)
    room = max(high - low, 1.0)
    thresholds = [t for t in _thresholds(scored) if low - room <= t <= high + room]
    return min([low, *thresholds]) - 0.12 * room, max([high, *thresholds]) + 0.06 * room


def _thresholds(scored: list[BlockRecord]) -> list[float]:
    return [record.decision.threshold for record in scored if record.decision.threshold is not None]


def _draw_frames(panel: Any, record: BlockRecord, low: float, roomy: bool) -> None:
    decision, number = record.decision, number_of(record)
    scores, worst = np.array(decision.frame_scores), decision.worst_frame
    places = number - 0.4 + 0.8 * (np.arange(len(scores)) + 0.5) / len(scores)
    finite = np.isfinite(scores)
    colour, size = COLOURS[fate_of(record)], 3.8 if roomy else 2.0
    panel.plot(places[finite], scores[finite], "o", markersize=size, color=colour, markeredgewidth=0, zorder=3)
    if not finite.all():
        broken = places[~finite]
        panel.plot(broken, np.full(len(broken), low), "x", color=INK, clip_on=False, zorder=5)
    if decision.threshold is not None and math.isfinite(decision.threshold):
        panel.hlines(decision.threshold, number - 0.5, number + 0.5, zorder=2, **THRESHOLD)
    if _aggregated(record):
        panel.hlines(decision.score, number - 0.4, number + 0.4, zorder=2, **SCORE)
    if worst is None or not finite[worst]:
        return
    edge = {"markeredgecolor": INK, "markeredgewidth": size / 3}
    panel.plot(places[worst], scores[worst], "o", markersize=1.6 * size, color=colour, zorder=4, **edge)
    if roomy:
        _write_number(panel, number, float(scores[worst]))


def _write_number(panel: Any, number: int, score: float) -> None:
    from matplotlib.patheffects import withStroke

    panel.annotate(
        f"{score:.2f}",
        (number, score),
        xytext=(0, -8),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=8,
        color=INK,
        zorder=6,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )


def _aggregated(record: BlockRecord) -> bool:
    """Whether the block was judged by something else than its worst frame."""
    return record.decision.score is not None and record.decision.score != min(record.decision.frame_scores)


def _keys(scored: list[BlockRecord], low: float, high: float) -> list[Any]:
    """Return what the legend explains: only what is there."""
    keys = [
        _key("a frame", marker="o", linestyle="", color=FAINT, markersize=4),
        _key("the worst frame of its block", marker="o", linestyle="", color=FAINT, markeredgecolor=INK),
    ]
    if not all(math.isfinite(score) for record in scored for score in record.decision.frame_scores):
        keys.append(_key("a score that is not finite", marker="x", linestyle="", color=INK))
    if any(_aggregated(record) for record in scored):
        keys.append(_key("the score of the block", **SCORE))
    thresholds = set(_thresholds(scored))
    if len(thresholds) == 1:
        value = thresholds.pop()
        where = "" if low <= value <= high else ", outside"
        keys.append(_key(f"threshold {value:.2f}{where}", **THRESHOLD))
    elif thresholds:
        keys.append(_key("threshold", **THRESHOLD))
    return keys


def _key(label: str, **look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def explain(panel: Any, keys: list[Any], top: float, anchor: str = "upper left") -> None:
    """Put a legend to the right of a panel."""
    panel.legend(
        handles=keys,
        loc=anchor,
        bbox_to_anchor=(1.0, top),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.4,
    )


def number_of(record: BlockRecord) -> int:
    """Return the block's number as people count."""
    return record.span.index + 1
