"""Many scenes of the small world at once, on any device: rendered, recognised and judged as one by one elsewhere.

A test holds the pictures against sdvg_core/pocket/renderer.py, the decibels against oracle.py there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from sdvg_core.pocket.oracle import BEST, REACH
from sdvg_core.pocket.world import COLOURS, DIRECTIONS, GROUNDS, PACES, PLACES, RADII, SHAPES, SIZE, Scene, Thing

LEAST = 12
"""Pixels of a thing that must be visible before it counts."""

PIECE = 4096
"""Frames rendered at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenes:
    """The numbers of n scenes, each with the thing farthest back first, and perhaps a second one in front.

    `radius`, `shape`, `there`: `n 2`. `colour`: `n 2 3`. `place`, `step`: `n 2 2`, across and down; the start as a
    fraction of the room, and pixels per frame. `ground`: `n 2 3`, at the top and at the bottom.
    """

    radius: Tensor
    shape: Tensor
    there: Tensor
    colour: Tensor
    place: Tensor
    step: Tensor
    ground: Tensor

    @classmethod
    def of(cls, scenes: Sequence[Scene], device: torch.device) -> Scenes:
        """Read them."""
        things = [[*map(_numbers, scene.things), *[_ABSENT] * (2 - len(scene.things))] for scene in scenes]
        columns = [[[thing[number] for thing in pair] for pair in things] for number in range(len(_ABSENT))]
        parts = [torch.tensor(column, dtype=torch.float32, device=device) for column in columns]
        ground = torch.tensor([GROUNDS[scene.ground] for scene in scenes], device=device)
        return cls(*[*parts, ground])

    def __getitem__(self, rows: Tensor | slice) -> Scenes:
        return Scenes(*(getattr(self, field.name)[rows] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.radius)

    def render(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return frames `n f 3 h w` at `times` (`n f`), and what is visible of each thing, `n f 2 h w`."""
        pieces = range(0, len(self), max(PIECE // times.shape[1], 1))
        made = [self[p : p + pieces.step]._render(times[p : p + pieces.step].float()) for p in pieces]
        return torch.cat([frames for frames, _ in made]), torch.cat([visible for _, visible in made])

    def _render(self, times: Tensor) -> tuple[Tensor, Tensor]:
        pixel = (torch.arange(SIZE, device=times.device) + 0.5) / SIZE
        top, bottom = (part[:, None, :, None, None] for part in self.ground.unbind(1))
        frames = (top + (bottom - top) * pixel.view(1, 1, 1, SIZE, 1)).expand(-1, times.shape[1], -1, -1, SIZE)
        covers = []
        for number in range(2):
            cover, shade = self._draw(number, times)
            covers.append(cover)
            colour = self.colour[:, number, None, :, None, None] * shade[:, :, None]
            frames = frames + (colour - frames) * cover[:, :, None]
        covers[0] = covers[0] * (1 - covers[1])
        return frames.clamp(0, 1), torch.stack(covers, dim=2)

    def _draw(self, number: int, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much of each pixel a thing covers, `n f h w`, and how brightly it is lit there."""
        radius = self.radius[:, number, None]
        room = SIZE - 2 * radius
        middles = []
        for axis in range(2):
            place = self.place[:, number, axis, None]
            step = self.step[:, number, axis, None]
            folded = (place * room + step * times).remainder(2 * room)
            middles.append(radius + torch.minimum(folded, 2 * room - folded))
        pixel = torch.arange(SIZE, device=times.device) + 0.5
        x = pixel.view(1, 1, 1, SIZE) - middles[0][..., None, None]
        y = pixel.view(1, 1, SIZE, 1) - middles[1][..., None, None]
        r = radius[..., None, None]
        shape = self.shape[:, number, None, None, None]
        cover = (0.5 - _distance(shape, x, y, r)).clamp(0, 1) * self.there[:, number, None, None, None]
        return cover, 1 - 0.2 * ((x + y) / r).clamp(-1, 1)


_ABSENT = (10.0, 0.0, 0.0, (0.0, 0.0, 0.0), (0.5, 0.5), (0.0, 0.0))


def _numbers(thing: Thing) -> tuple[object, ...]:
    pace = PACES[thing.pace] if thing.pace else 0.0
    along = DIRECTIONS[thing.direction] if thing.pace else (0, 0)
    step = tuple(pace * way for way in along)
    return (RADII[thing.size], SHAPES.index(thing.shape), 1.0, COLOURS[thing.colour], PLACES[thing.place], step)


def _distance(shape: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Return the signed distance in pixels from the edge of a shape around (0, 0), negative inside."""
    ax = x.abs()
    ay = y.abs()
    round_ = (x.square() + y.square()).sqrt()
    arm = 0.32 * radius
    cross = torch.minimum(torch.maximum(ax - radius, ay - arm), torch.maximum(ax - arm, ay - radius))
    by_name = {
        "ball": round_ - radius,
        "box": torch.maximum(ax, ay) - 0.85 * radius,
        "diamond": (ax + ay - 1.15 * radius) / 2**0.5,
        "ring": (round_ - 0.76 * radius).abs() - 0.24 * radius,
    }
    for name, distance in by_name.items():
        cross = torch.where(shape == SHAPES.index(name), distance, cross)
    return cross


def frame_errors(frames: Tensor, truth: Tensor, visible: Tensor) -> Tensor:
    """Return mean squared errors `n f` of frames `n f c h w`; all things together weigh as much as the ground."""
    error = (frames - truth).square().mean(dim=2)
    things = visible.sum(dim=2)
    on_things = (error * things).sum(dim=(2, 3)) / things.sum(dim=(2, 3)).clamp(min=1)
    on_ground = (error * (1 - things)).sum(dim=(2, 3)) / (1 - things).sum(dim=(2, 3)).clamp(min=1)
    return (on_things + on_ground) / 2


def thing_errors(frames: Tensor, truth: Tensor, visible: Tensor) -> Tensor:
    """Return the mean squared error `n 2` over the frames on each thing alone; 0 where too little is visible."""
    error = (frames - truth).square().mean(dim=2, keepdim=True)
    size = visible.sum(dim=(1, 3, 4))
    return (error * visible).sum(dim=(1, 3, 4)) / size.clamp(min=1) * (size >= LEAST * frames.shape[1])


def recognise(scenes: Scenes, frames: Tensor, due: int, reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return by how many frames clips `n f c h w`, due at `due` and after, are ahead.

    Also the error at that moment, `n`, and that on each thing, `n 2`. The nearest of moments that fit equally well.
    """
    count = frames.shape[1]
    first = max(due - reach, 0)
    times = torch.arange(first, due + count + reach, device=frames.device)
    truth, visible = scenes.render(times.expand(len(scenes), -1))
    starts = len(times) - count + 1
    moments = [slice(start, start + count) for start in range(starts)]
    errors = torch.stack([frame_errors(frames, truth[:, m], visible[:, m]).mean(dim=1) for m in moments])
    ahead = torch.arange(starts, device=frames.device) + first - due
    best = (errors + 1e-9 * ahead.abs()[:, None]).argmin(dim=0)
    rows = torch.arange(len(scenes), device=frames.device)[:, None]
    shown = best[:, None] + torch.arange(count, device=frames.device)
    on_things = thing_errors(frames, truth[rows, shown], visible[rows, shown])
    return ahead[best], errors.gather(0, best[None])[0], on_things


def quality(scenes: Scenes, frames: Tensor) -> Tensor:
    """Return the oracle's decibels `n f` of whole clips `n f c h w`: each frame against its best moment."""
    count = frames.shape[1]
    times = torch.arange(-REACH, count + REACH, device=frames.device).clamp(min=0)
    found = []
    for first in range(0, len(scenes), 32):
        here = slice(first, first + 32)
        truth, visible = scenes[here].render(times.expand(len(scenes[here]), -1))
        moments = [slice(start, start + count) for start in range(2 * REACH + 1)]
        errors = torch.stack([frame_errors(frames[here], truth[:, m], visible[:, m]) for m in moments])
        found.append(errors.amin(dim=0))
    return (-10 * torch.cat(found).clamp(min=1e-12).log10()).clamp(max=BEST)
