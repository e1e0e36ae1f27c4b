"""The route of a run as a picture: who made each block, on what scores, and what it took.

One column per block, three panels: the fate of the block, its frames' scores against the threshold, its seconds.
Blocks are counted from 1 here, as everywhere people read, and from 0 in the report.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from PIL import Image

from .errors import BadInput
from .fates import COLOURS, LETTERS, Fate, fate_of
from .picture_scores import FAINT, INK, ROOM_FOR_TEXT, draw_scores, explain, number_of
from .record_json import SECONDS
from .records import BlockRecord
from .report import RunReport
from .summary import acceptance, fates

# Green is the drafter's work here too, and orange-red the target's.
PART_COLOURS = dict(zip(SECONDS, ("#009E73", "#56B4E9", "#F0E442", "#D55E00", "#999999"), strict=True))
DPI = 100
# Inches.
COLUMN, NARROWEST, WIDEST = 0.5, 6.0, 16.0
LEFT, RIGHT, BOTTOM, LINE = 0.75, 2.95, 0.6, 0.24
STRIP, SCORES, NO_SCORES, TIMES = 0.4, 3.4, 0.8, 1.6
FEWEST_COLUMNS = 5
PROMPT_LINES = 3
# Of a letter, for each point of its size.
LETTER_WIDTH = 0.0084


def route_picture(report: RunReport) -> Image.Image:
    """Return the picture of a run's route, RGB; the more blocks, the wider, up to a limit.

    Raises `BadInput` where matplotlib is not installed.
    """
    prompts = _prompt_lines(report.blocks)
    figure, (strip, scores, seconds) = _panels(report.blocks, header=1.0 + LINE * len(prompts))
    _draw_header(figure, report, prompts)
    _draw_strip(strip, report.blocks)
    draw_scores(scores, report.blocks)
    _draw_seconds(seconds, report)
    figure.canvas.draw()
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy())


def _panels(blocks: tuple[BlockRecord, ...], header: float) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput(
            "expected matplotlib for a picture of the route, but it is not installed; run: pip install matplotlib"
        ) from error
    width = LEFT + min(max(NARROWEST, COLUMN * len(blocks)), WIDEST) + RIGHT
    rows = (STRIP, SCORES if any(record.decision.scored for record in blocks) else NO_SCORES, TIMES)
    height = header + sum(rows) + BOTTOM
    # Half a pixel more, or a size such as 9.7 inches is cut to 969 pixels where it is not rounded.
    size = (width + 0.5 / DPI, height + 0.5 / DPI)
    figure = Figure(figsize=size, dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=rows)
    figure.subplots_adjust(
        left=LEFT / width, right=1 - RIGHT / width, top=1 - header / height, bottom=BOTTOM / height, hspace=0.1
    )
    first, last = number_of(blocks[0]), number_of(blocks[-1])
    for panel in panels:
        panel.set_xlim(first - 0.5, max(last, first + FEWEST_COLUMNS - 1) + 0.5)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.tick_params(labelsize=9, colors=INK, bottom=False)
        if len(blocks) <= ROOM_FOR_TEXT:
            panel.set_xticks(range(first, last + 1))
    panels[-1].set_xlabel("block", fontsize=9, color=INK)
    return figure, panels


def _draw_header(figure: Any, report: RunReport, prompts: list[str]) -> None:
    width, height = figure.get_size_inches()
    time = f"{report.seconds.total:.1f} s"
    if report.speed_up:
        time += f", {report.speed_up:.2f}x as fast as target-only ({report.target_only_source})"
    first = fates(report)
    lines = [(first[0].upper() + first[1:], 13, INK), (acceptance(report), 10, INK), (time, 10, INK)]
    lines += [(prompt, 9, FAINT) for prompt in prompts]
    for i, (text, size, colour) in enumerate(lines):
        top = 1 - (0.28 + LINE * i) / height
        letters = int((width - 0.4) / (LETTER_WIDTH * size))
        weight = "bold" if i == 0 else "normal"
        figure.text(
            0.2 / width,
            top,
            _drawable(shorten(text, letters)),
            fontsize=size,
            color=colour,
            weight=weight,
            va="center",
            parse_math=False,
        )


def _prompt_lines(blocks: tuple[BlockRecord, ...]) -> list[str]:
    """Return a line for each prompt of the run, as long as they are few."""
    scenes = [(prompt, next(group)) for prompt, group in groupby(blocks, key=lambda record: record.prompt)]
    if len(scenes) == 1:
        return [scenes[0][0]]
    lines = [f"from block {number_of(record)}: {prompt}" for prompt, record in scenes]
    if len(lines) <= PROMPT_LINES:
        return lines
    return [*lines[: PROMPT_LINES - 1], f"and {len(lines) - PROMPT_LINES + 1} more prompts"]


def _draw_strip(panel: Any, blocks: tuple[BlockRecord, ...]) -> None:
    room = len(blocks) <= ROOM_FOR_TEXT
    for record in blocks:
        fate = fate_of(record)
        panel.bar(number_of(record), 1, width=0.92 if room else 1.0, color=COLOURS[fate])
        if room:
            colour = INK if fate in (Fate.DRAFTED_UNSEEN, Fate.TARGET_UNSEEN) else "white"
            panel.text(
                number_of(record), 0.48, LETTERS[fate], ha="center", va="center", color=colour, weight="bold"
            )
    panel.set_ylim(0, 1)
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    present = {fate_of(record) for record in blocks}
    keys = [
        _patch(COLOURS[fate], f"{LETTERS[fate]}  {fate.value}" if room else fate.value)
        for fate in Fate
        if fate in present
    ]
    explain(panel, keys, top=1.0)


def _draw_seconds(panel: Any, report: RunReport) -> None:
    numbers = [number_of(record) for record in report.blocks]
    foot = np.zeros(len(numbers))
    keys = []
    for part in SECONDS:
        spent = np.array([getattr(record.seconds, part) for record in report.blocks])
        if not spent.any():
            continue
        panel.bar(numbers, spent, bottom=foot, width=0.8, color=PART_COLOURS[part], linewidth=0)
        foot = foot + spent
        keys.append(_patch(PART_COLOURS[part], f"{part} {spent.sum():.1f} s"))
    panel.set_ylim(0, max(1.05 * foot.max(), 1e-3))
    panel.set_ylabel("seconds", fontsize=9, color=INK)
    explain(panel, keys[::-1], top=1.0)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def shorten(text: str, letters: int) -> str:
    """Return `text` on one line, cut to `letters` letters."""
    line = " ".join(text.split())
    return line if len(line) <= letters else line[: max(letters - 1, 0)] + "…"


def _drawable(text: str) -> str:
    """Return `text` with a box for each letter the font does not have, such as most of the world's."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return "".join(letter if font.get_char_index(ord(letter)) else "□" for letter in text)
