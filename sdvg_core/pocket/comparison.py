"""The demo's comparison: two videos side by side as they play, each with its route below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ..report.picture import FAINT, INK, WHITE, Drawing, fitted, tint, write
from ..report.run_report import RunReport, worst_score
from ..report.summary import COLOURS, count, outcome_of

SIDE, MARGIN, ABOVE, CELLS, BELOW = 384, 24, 68, 30, 108
"""Pixels: of a video's longer side at least, between videos, above them, of a block's cell, below them."""
YET_TO_COME = 0.3
"""How strong the colour of a block is that has not played."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the videos. `frames`: `f c h w` RGB in [0, 1], as many as its report counts."""

    title: str
    frames: Tensor
    report: RunReport


def side_by_side(left: Side, right: Side) -> Iterator[Tensor]:
    """Yield the frames of the comparison, `1 c h w` RGB in [0, 1]; both videos have the same blocks.

    The frames are enlarged by a whole number without smoothing, so that each of their pixels can be seen.
    """
    height, width = left.frames.shape[-2:]
    factor = max(1, SIDE // max(height, width))
    first = 0
    for block, record in enumerate(left.report.blocks):
        background = _background((left, right), factor * width, factor * height, block)
        for number in range(first, first + record.pixel_frames):
            picture = background.clone()
            for place, side in enumerate((left, right)):
                x = _left_edge(place, factor * width)
                enlarged = side.frames[number].cpu().float().clamp(0, 1)
                enlarged = enlarged.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
                picture[:, ABOVE : ABOVE + factor * height, x : x + factor * width] = enlarged
            yield picture[None]
        first += record.pixel_frames


def _left_edge(place: int, width: int) -> int:
    return MARGIN + place * (width + MARGIN)


def _background(sides: tuple[Side, Side], width: int, height: int, block: int) -> Tensor:
    """Return everything but the frames while a block plays: `c h w` in [0, 1]."""
    image = Image.new("RGB", (3 * MARGIN + 2 * width, ABOVE + height + BELOW), WHITE)
    pen = ImageDraw.Draw(image)
    below = ABOVE + height
    for place, side in enumerate(sides):
        x = _left_edge(place, width)
        record = side.report.blocks[block]
        total = len(side.report.blocks)
        by_target = f"the target made {side.report.tally.by_target} of {count(total, 'block')}"
        outcome = f"block {block + 1} of {total}: {outcome_of(record).value}"
        score = f"worst frame of the draft {worst_score(record):.2f}" if record.decision.scored else "not scored"
        write(pen, x, 26, fitted(side.title, 20, width), 20, INK, "lm")
        write(pen, x, 50, fitted(by_target, 15, width), 15, FAINT, "lm")
        write(pen, x, below + CELLS + 36, fitted(outcome, 16, width), 16, INK, "lm")
        write(pen, x, below + CELLS + 60, fitted(score, 15, width), 15, FAINT, "lm")
        _draw_cells(pen, side.report, x, below + 14, width, block)
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1).contiguous()


def _draw_cells(pen: Drawing, report: RunReport, left: float, top: float, width: float, block: int) -> None:
    """Draw a cell per block: in full colour up to the one that plays, which has a frame."""
    cell = width / len(report.blocks)
    for number, record in enumerate(report.blocks):
        x = left + number * cell
        colour = COLOURS[outcome_of(record)]
        if number == block:
            pen.rectangle([x, top - 4, x + cell, top + CELLS + 4], INK)
        shown = colour if number <= block else tint(colour, YET_TO_COME)
        pen.rectangle([x + 3, top, max(x + cell - 3, x + 3), top + CELLS], shown)
