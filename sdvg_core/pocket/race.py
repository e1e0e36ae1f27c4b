"""The demo's race: one prompt by the small model, by both and by the large one, side by side as time goes by.

A block is shown from the time on at which it was made, so a viewer sees who waits for whom; at the end it says what
each video cost, and how like it is to what was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import interpolate

from ..engine.records import BlockRecord
from ..memory.budget import pass_weights
from ..report.picture import LIGHT, fitted, tint, write
from ..report.run_report import passes_of
from ..report.summary import OUTCOME_COLOURS, Outcome
from ..settings.context import Preset

LEAST_SECONDS = 8.0
"""The slowest video takes at least this long; quicker races are slowed."""
RESULT_SECONDS = 3.0
# Pixels: a video's longer side, gaps, and the heights of prompt, titles, strip and results.
LANE_SIDE = 320
EDGE = 24
ASKED = 58
TITLE = 34
CELLS = 26
RESULT = 136
LEGEND = 30
NOTE = 28
YET_TO_COME = 0.3
"""Share of a block's colour before it is made."""
NOT_YET = "#E4E4E4"
AUTHOR_COLOURS = {"target": OUTCOME_COLOURS[Outcome.FORCED], "drafter": OUTCOME_COLOURS[Outcome.KEPT]}
"""Of a block, by its author."""
MODELS = {"drafter": "a block by the small model", "target": "a block by the large model"}
"""What the colours mean."""


@dataclass(frozen=True, eq=False)
class Lane:
    """One video of the race. `frames`: `f c h w` RGB in [0, 1]. `records`: of its blocks, in order.

    `costs`: after each block, as a share of the large model's whole video. `figures`: what the oracle says of it;
    see `figures_of`.
    """

    title: str
    frames: Tensor
    records: tuple[BlockRecord, ...]
    costs: tuple[float, ...]
    figures: Mapping[str, float]

    @property
    def cost(self) -> float:
        """Cost of the whole video, as a share of the large model's."""
        return self.costs[-1]

    @property
    def seconds(self) -> float:
        """Seconds from its first block's start to the last one's frames."""
        return math.fsum(record.seconds.total for record in self.records)

    @cached_property
    def made_at(self) -> tuple[float, ...]:
        """Seconds after which each block was there."""
        return tuple(np.cumsum([record.seconds.total for record in self.records]).tolist())


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the blocks of a lane are shown, in seconds of the picture. `made`: when they are there. `shown`: begins.

    `first_frames`: the number of each block's first pixel frame, and at last that of all frames.
    """

    made: tuple[float, ...]
    shown: tuple[float, ...]
    first_frames: tuple[int, ...]
    end: float

    def frame_at(self, time: float, fps: float) -> int | None:
        """Return the number of the pixel frame that is on at a time; None before the first."""
        begun = [block for block, start in enumerate(self.shown) if start <= time]
        if not begun:
            return None
        block = begun[-1]
        last = self.first_frames[block + 1] - 1
        return min(self.first_frames[block] + math.floor((time - self.shown[block]) * fps + 1e-6), last)


def timetable(lane: Lane, slowing: float, fps: float) -> Timetable:
    """Return when the blocks of a lane are shown: when they are made, but not before the one before was played."""
    made = tuple(seconds * slowing for seconds in lane.made_at)
    shown: list[float] = []
    first_frames = [0]
    free = 0.0
    for record, there in zip(lane.records, made, strict=True):
        shown.append(max(there, free))
        free = shown[-1] + record.pixel_frames / fps
        first_frames.append(first_frames[-1] + record.pixel_frames)
    return Timetable(made, tuple(shown), tuple(first_frames), free)


def race_frames(lanes: Sequence[Lane], prompt: str, fps: float) -> Iterator[Tensor]:
    """Yield the frames of the race, `1 c h w` RGB in [0, 1]. `fps`: of the videos, and of the race."""
    slowing = max(1.0, LEAST_SECONDS / max(lane.seconds for lane in lanes))
    timetables = [timetable(lane, slowing, fps) for lane in lanes]
    end = max(times.end for times in timetables)
    ground = _Ground(lanes, prompt, slowing)
    drawn: dict[tuple[int, ...], Tensor] = {}
    for tick in range(math.ceil((end + RESULT_SECONDS) * fps)):
        time = tick / fps
        made = tuple(sum(there <= time for there in times.made) for times in timetables)
        state = (*made, int(time >= end))
        if state not in drawn:
            drawn = {state: ground.draw(made, ended=time >= end)}
        picture = drawn[state].clone()
        for place, (lane, times) in enumerate(zip(lanes, timetables, strict=True)):
            number = times.frame_at(time, fps)
            if number is not None:
                _paste(picture, lane.frames[number], place)
        yield picture[None]


def cost_of(records: Sequence[BlockRecord], presets: Mapping[str, Preset]) -> float:
    """Return the cost of blocks in blocks of the published target: every pass and decode by its weight."""
    scores = sum(len(record.decision.known_scores) for record in records)
    counted = {**passes_of(records), "scores": scores}
    return math.fsum(weight * counted[name] for name, weight in pass_weights(presets).items())


def _paste(picture: Tensor, frame: Tensor, place: int) -> None:
    """Draw a frame, enlarged by a whole number without smoothing so that single pixels stay visible."""
    factor = max(1, LANE_SIDE // max(frame.shape[-2:]))
    enlarged = interpolate(frame[None].cpu().float().clamp(0, 1), scale_factor=factor)[0]
    top = ASKED + TITLE
    left = EDGE + place * (LANE_SIDE + EDGE)
    picture[:, top : top + enlarged.shape[1], left : left + enlarged.shape[2]] = enlarged


@dataclass(frozen=True, slots=True, eq=False)
class _Ground:
    """What is drawn around the videos."""

    lanes: Sequence[Lane]
    prompt: str
    slowing: float

    def draw(self, made: Sequence[int], *, ended: bool) -> Tensor:
        """Return the picture without videos, `c h w` in [0, 1]. `made`: number of blocks that each lane has."""
        width = EDGE + len(self.lanes) * (LANE_SIDE + EDGE)
        height = ASKED + TITLE + LANE_SIDE + CELLS + RESULT + LEGEND + NOTE
        image = Image.new("RGB", (width, height + height % 2), LIGHT.ground)
        pen = ImageDraw.Draw(image)
        write(pen, EDGE, ASKED / 2, "Asked for:", 18, LIGHT.faint, "lm")
        write(pen, EDGE + 96, ASKED / 2, fitted(self.prompt, 18, width - 2 * EDGE - 96), 18, LIGHT.ink, "lm")
        for place, lane in enumerate(self.lanes):
            self._draw_lane(pen, EDGE + place * (LANE_SIDE + EDGE), lane, made[place], ended)
        self._draw_key(pen, height - NOTE - LEGEND / 2)
        slowed = f"Slowed {self.slowing:.1f} times. " if self.slowing > 1 else ""
        note = (
            f"{slowed}Cost: passes and decodes, weighted as for the published pair; 100% is the large model alone. "
            "Likeness: to what was asked; more dB are better."
        )
        write(pen, EDGE, height - NOTE / 2, note, 13, LIGHT.faint, "lm")
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
        return pixels.permute(2, 0, 1).contiguous()

    def _draw_lane(self, pen: ImageDraw.ImageDraw, left: float, lane: Lane, made: int, ended: bool) -> None:
        write(pen, left, ASKED + TITLE / 2, lane.title, 20, LIGHT.ink, "lm")
        top = ASKED + TITLE
        pen.rectangle([left, top, left + LANE_SIDE - 1, top + LANE_SIDE - 1], NOT_YET)
        top += LANE_SIDE
        cell = LANE_SIDE / len(lane.records)
        for number, record in enumerate(lane.records):
            colour = AUTHOR_COLOURS[record.author]
            if number >= made:
                colour = tint(colour, YET_TO_COME)
            pen.rectangle(
                [left + number * cell, top + 4, left + (number + 1) * cell, top + CELLS], colour, LIGHT.ground, 1
            )
        top += CELLS
        for text, y, size, colour in _result(lane) if ended else _progress(lane, made):
            write(pen, left + LANE_SIDE / 2, top + y, text, size, colour)

    def _draw_key(self, pen: ImageDraw.ImageDraw, y: float) -> None:
        for place, (author, words) in enumerate(MODELS.items()):
            left = EDGE + place * (LANE_SIDE + EDGE)
            pen.rectangle([left, y - 8, left + 28, y + 8], AUTHOR_COLOURS[author])
            write(pen, left + 38, y, words, 15, LIGHT.ink, "lm")


Line = tuple[str, float, int, str]
"""Text below a video, its height, size and colour."""


def _progress(lane: Lane, made: int) -> tuple[Line, ...]:
    """Return what stands below a video while the race goes on."""
    state = f"making block {made + 1} of {len(lane.records)}" if made < len(lane.records) else "done"
    so_far = f"{lane.costs[made - 1] if made else 0:.0%} of the cost"
    return (so_far, 26, 30, LIGHT.faint), (state, 66, 18, LIGHT.faint)


def _result(lane: Lane) -> tuple[Line, ...]:
    """Return what stands below a video at the end."""
    placed = lane.figures["at_its_place"]
    lines = [
        (f"{lane.cost:.0%} of the cost", 26, 30, LIGHT.ink),
        (f"likeness {lane.figures['quality']:.1f} dB", 66, 30, LIGHT.ink),
        (f"{lane.seconds:.1f} s here", 120, 15, LIGHT.faint),
    ]
    if not math.isnan(placed):
        lines.append((f"the thing is at its place in {placed:.0%} of the frames", 98, 15, LIGHT.faint))
    return tuple(lines)
