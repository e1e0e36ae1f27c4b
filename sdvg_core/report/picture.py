"""The route of a run as a picture: which model made each block, the scores that decided, and the seconds spent.

One column per block and three panels: the block's fate, its frame scores with the threshold, and its seconds.
Blocks count from 1 here, as everywhere people read, and from 0 in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from PIL import Image

from ..engine.records import BlockRecord
from .canvas import FAINT, INK, Canvas
from .picture_panel import ROOM_FOR_TEXT, Panel, draw_axis, explain, number_blocks, number_of, swatch
from .picture_scores import draw_scores
from .record_json import SECONDS
from .run_report import RunReport, is_hidden
from .summary import COLOURS, INKS, LETTERS, Fate, acceptance, fate_of, fates

# Here too, green stands for the drafter and orange-red for the target.
PART_COLOURS = dict(zip(SECONDS, ("#009E73", "#56B4E9", "#F0E442", "#D55E00", "#999999"), strict=True))
# Pixels.
COLUMN, NARROWEST, WIDEST = 50, 600, 1600
LEFT, RIGHT, HEADER, LINE, BOTTOM = 75, 295, 100, 24, 60
STRIP, SCORES, NO_SCORES, TIMES, BETWEEN = 36, 320, 60, 148, 18
FEWEST_COLUMNS = 5
PROMPT_LINES = 3


def route_picture(report: RunReport) -> Image.Image:
    """Return the picture of a run's route, RGB; it gets wider with more blocks, up to a limit."""
    blocks, prompts = report.blocks, _prompt_lines(report.blocks)
    strip, scores, seconds = _panels(blocks, top=HEADER + LINE * len(prompts))
    canvas = Canvas(int(strip.right) + RIGHT, int(seconds.bottom) + BOTTOM)
    _draw_header(canvas, report, prompts)
    _draw_strip(canvas, strip, blocks)
    draw_scores(canvas, scores, blocks)
    _draw_seconds(canvas, seconds, blocks)
    number_blocks(canvas, seconds, number_of(blocks[-1]))
    return canvas.finished()


def _panels(blocks: Sequence[BlockRecord], top: int) -> list[Panel]:
    first, columns = number_of(blocks[0]), max(len(blocks), FEWEST_COLUMNS)
    right = LEFT + min(max(NARROWEST, COLUMN * len(blocks)), WIDEST)
    panels = []
    for height in (STRIP, SCORES if any(record.decision.scored for record in blocks) else NO_SCORES, TIMES):
        panels.append(Panel(left=LEFT, right=right, top=top, bottom=top + height, first=first, columns=columns))
        top += height + BETWEEN
    return panels


def _draw_header(canvas: Canvas, report: RunReport, prompts: Sequence[str]) -> None:
    time = f"{report.seconds.total:.1f} s"
    if report.speed_up:
        time += f", {report.speed_up:.2f}x as fast as target-only ({report.target_only_source})"
    first = fates(report)
    lines = [(first[0].upper() + first[1:], 20, INK), (acceptance(report), 15, INK), (time, 15, INK)]
    lines += [(prompt, 14, FAINT) for prompt in prompts]
    for i, (text, size, colour) in enumerate(lines):
        room = canvas.width - 40
        canvas.text(20, 28 + LINE * i, text, size, colour, align=0.0, room=room, bold=i == 0)


def _prompt_lines(blocks: Sequence[BlockRecord]) -> list[str]:
    """Return a line for each prompt of the run, up to a limit; none for hidden prompts."""
    groups = groupby(blocks, key=lambda record: record.prompt)
    scenes = [(prompt, next(group)) for prompt, group in groups if not is_hidden(prompt)]
    if len(scenes) == 1:
        return [scenes[0][0]]
    lines = [f"from block {number_of(record)}: {prompt}" for prompt, record in scenes]
    if len(lines) <= PROMPT_LINES:
        return lines
    return [*lines[: PROMPT_LINES - 1], f"and {len(lines) - PROMPT_LINES + 1} more prompts"]


def _draw_strip(canvas: Canvas, panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    roomy = len(blocks) <= ROOM_FOR_TEXT
    half = (0.46 if roomy else 0.5) * panel.column
    for record in blocks:
        x, fate = panel.x(number_of(record)), fate_of(record)
        canvas.box(x - half, panel.top, x + half, panel.bottom, COLOURS[fate])
        if roomy:
            canvas.text(x, (panel.top + panel.bottom) / 2, LETTERS[fate], 16, INKS[fate], bold=True)
    present = {fate_of(record) for record in blocks}
    keys = [(f"{LETTERS[fate]}  {fate.value}" if roomy else fate.value, fate) for fate in Fate if fate in present]
    explain(canvas, panel, [(label, swatch(COLOURS[fate])) for label, fate in keys])


def _draw_seconds(canvas: Canvas, panel: Panel, blocks: Sequence[BlockRecord]) -> None:
    longest = max(record.seconds.total for record in blocks)
    panel = replace(panel, high=max(1.05 * longest, 1e-3))
    for record in blocks:
        x, foot = panel.x(number_of(record)), 0.0
        for part, colour in PART_COLOURS.items():
            top = foot + getattr(record.seconds, part)
            canvas.box(x - 0.4 * panel.column, panel.y(top), x + 0.4 * panel.column, panel.y(foot), colour)
            foot = top
    draw_axis(canvas, panel, "seconds")
    spent = {part: sum(getattr(record.seconds, part) for record in blocks) for part in SECONDS}
    explain(
        canvas,
        panel,
        [(f"{p} {spent[p]:.1f} s", swatch(PART_COLOURS[p])) for p in reversed(SECONDS) if spent[p]],
    )
