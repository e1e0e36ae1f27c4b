"""Two videos of the same prompt and noise side by side, enlarged, with the route of each below it as it plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..engine.records import BlockRecord
from .canvas import FAINT, INK, WHITE, Canvas, tint
from .run_report import RunReport, worst_score
from .summary import COLOURS, LETTERS, Fate, count, fate_of

# Pixels.
PANEL, MARGIN, HEADER, STRIP, FOOTER = 384, 24, 68, 30, 108
ROOM_FOR_LETTER = 16
YET_TO_COME = 0.3
"""How strong the colour of a block is that has not played."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the videos. `frames`: `f c h w` RGB in [0, 1], as many as its report counts."""

    title: str
    frames: Tensor
    report: RunReport


def side_by_side(left: Side, right: Side) -> Iterator[Tensor]:
    """Yield the frames of the comparison, `1 c h w` RGB in [0, 1], as long as the shorter video.

    The frames are enlarged by a whole number without smoothing, so that each of their pixels can be seen.
    """
    sides = (left, right)
    factor = max(1, PANEL // max(left.frames.shape[-2:]))
    wide, high = (factor * side for side in reversed(left.frames.shape[-2:]))
    places = [(MARGIN + at * (wide + MARGIN), HEADER) for at in range(2)]
    shown, sheet = -1, torch.empty(0)
    for at, pair in enumerate(zip(left.frames, right.frames, strict=False)):
        block = _block_at(left.report, at)
        if block != shown:
            shown, sheet = block, _sheet(sides, places, wide, high, block)
        picture = sheet.clone()
        for (x, y), frame in zip(places, pair, strict=True):
            picture[:, y : y + high, x : x + wide] = _enlarged(frame, factor)
        yield picture[None]


def _block_at(report: RunReport, frame: int) -> int:
    """Return which block, from 0, shows a pixel frame."""
    ends = accumulate(record.pixel_frames for record in report.blocks)
    return next(block for block, end in enumerate(ends) if frame < end)


def _enlarged(frame: Tensor, factor: int) -> Tensor:
    return frame.detach().cpu().float().clamp(0, 1).repeat_interleave(factor, 1).repeat_interleave(factor, 2)


def _sheet(sides: tuple[Side, Side], places: list[tuple[int, int]], wide: int, high: int, block: int) -> Tensor:
    """Return everything but the frames, while a block plays: `c h w` in [0, 1]."""
    canvas = Canvas(3 * MARGIN + 2 * wide, HEADER + high + FOOTER)
    for side, (left, top) in zip(sides, places, strict=True):
        canvas.text(left, 26, side.title, 20, align=0.0, room=wide, bold=True)
        canvas.text(left, 50, _by_target(side.report), 15, FAINT, align=0.0, room=wide)
        records = side.report.blocks
        _draw_strip(canvas, records, left, top + high + 14, wide, block)
        said = f"block {block + 1} of {len(records)}: {fate_of(records[block]).value}"
        canvas.text(left, top + high + STRIP + 36, said, 16, align=0.0, room=wide)
        canvas.text(left, top + high + STRIP + 60, _score(records[block]), 15, FAINT, align=0.0, room=wide)
    pixels = torch.from_numpy(np.asarray(canvas.finished(), dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1).contiguous()


def _by_target(report: RunReport) -> str:
    return f"the target made {report.tally.by_target} of {count(len(report.blocks), 'block')}"


def _score(record: BlockRecord) -> str:
    return f"worst frame of the draft {worst_score(record):.2f}" if record.decision.scored else "not scored"


def _draw_strip(
    canvas: Canvas, records: tuple[BlockRecord, ...], left: float, top: float, wide: float, block: int
) -> None:
    """Draw a cell per block: in full colour up to the one that plays, which has a frame."""
    cell, bottom = wide / len(records), top + STRIP
    for number, record in enumerate(records):
        x, fate = left + number * cell, fate_of(record)
        colour = COLOURS[fate] if number <= block else tint(COLOURS[fate], YET_TO_COME)
        if number == block:
            canvas.box(x, top - 4, x + cell, bottom + 4, INK)
        canvas.box(x + 3, top, x + cell - 3, bottom, colour)
        if cell >= ROOM_FOR_LETTER:
            pale = fate in (Fate.DRAFTED_UNSEEN, Fate.TARGET_UNSEEN)
            canvas.text(x + cell / 2, (top + bottom) / 2, LETTERS[fate], 15, INK if pale else WHITE, bold=True)
