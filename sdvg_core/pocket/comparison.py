"""The demo's comparison: two videos side by side, each with its route below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import interpolate

from ..errors import count
from ..report.picture import LIGHT, fitted, tint, write
from ..report.run_report import RunReport
from ..report.summary import OUTCOME_COLOURS, outcome_of

# Pixels: longer side of a video (at least), gaps, space for the titles, height of a block's cell.
PANEL_SIDE = 384
EDGE = 24
ABOVE = 48
CELLS = 30
YET_TO_COME = 0.3
"""Share of a block's colour before it plays."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the two videos. `frames`: `f c h w` RGB in [0, 1], as many as in its report."""

    title: str
    frames: Tensor
    report: RunReport


def side_by_side(left: Side, right: Side) -> Iterator[Tensor]:
    """Yield the frames of the comparison, `1 c h w` RGB in [0, 1]. Both videos must have the same blocks.

    Frames are enlarged by a whole number without smoothing, so that single pixels stay visible.
    """
    height, width = left.frames.shape[-2:]
    factor = max(1, PANEL_SIDE // max(height, width))
    first = 0
    for block, record in enumerate(left.report.blocks):
        background = _background((left, right), factor * width, factor * height, block)
        for number in range(first, first + record.pixel_frames):
            picture = background.clone()
            for place, side in enumerate((left, right)):
                x = _left_edge(place, factor * width)
                frame = side.frames[number].cpu().float().clamp(0, 1)
                enlarged = interpolate(frame[None], scale_factor=factor)[0]
                picture[:, ABOVE : ABOVE + factor * height, x : x + factor * width] = enlarged
            yield picture[None]
        first += record.pixel_frames


def _left_edge(place: int, width: int) -> int:
    return EDGE + place * (width + EDGE)


def _background(sides: tuple[Side, Side], width: int, height: int, block: int) -> Tensor:
    """Draw titles and routes while `block` plays, `c h w` in [0, 1].

    Cells of blocks played so far have full colour; the current one has an outline.
    """
    top = ABOVE + height + EDGE
    image = Image.new("RGB", (3 * EDGE + 2 * width, top + CELLS + EDGE), LIGHT.ground)
    pen = ImageDraw.Draw(image)
    for place, side in enumerate(sides):
        records = side.report.blocks
        title = f"{side.title}: {side.report.tally.by_target} of {count(len(records), 'block')} by the large one"
        x = _left_edge(place, width)
        write(pen, x, ABOVE / 2, fitted(title, 16, width), 16, LIGHT.ink, "lm")
        cell = width / len(records)
        for number, record in enumerate(records):
            colour = OUTCOME_COLOURS[outcome_of(record)]
            if number > block:
                colour = tint(colour, YET_TO_COME)
            rim = LIGHT.ink if number == block else LIGHT.ground
            edges = [x + number * cell, top, x + (number + 1) * cell, top + CELLS]
            pen.rectangle(edges, colour, rim, round(min(3, cell / 4)))
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1).contiguous()
