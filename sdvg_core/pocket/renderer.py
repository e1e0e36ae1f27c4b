"""The clips of the small world, rendered exactly for any moment.

A moving thing goes straight and bounces off the edges. The position of everything is a closed formula of time, so a
clip can be rendered at any frame count, or at moments between frames. A prompt determines its clip.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .world import COLOURS, DIRECTIONS, GROUNDS, PACES, PLACES, RADII, SIZE, Scene, Thing


def render_scene(scene: Scene, times: Tensor) -> Tensor:
    """Return the frames at `times`, in frames from 0 and not only whole ones: `f c h w` in [0, 1], float32."""
    return render_with_mask(scene, times)[0]


def render_with_mask(scene: Scene, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return the frames at `times`, `f c h w`, and how much of each pixel a thing covers, `f 1 h w`."""
    rows = (torch.arange(SIZE, dtype=torch.float32) + 0.5) / SIZE
    top, bottom = (torch.tensor(colour).view(3, 1, 1) for colour in GROUNDS[scene.ground])
    ground = (top + (bottom - top) * rows.view(1, SIZE, 1)).expand(3, SIZE, SIZE)
    frames = ground.expand(len(times), -1, -1, -1)
    mask = torch.zeros(len(times), 1, SIZE, SIZE)
    for thing in scene.things:
        cover, shade = draw_thing(thing, times.float())
        colour = torch.tensor(COLOURS[thing.colour]).view(1, 3, 1, 1) * shade
        frames = frames + (colour - frames) * cover
        mask = mask + (1 - mask) * cover
    return frames.clamp(0, 1), mask


def centre(thing: Thing, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the middle of a thing is, in pixels (across, down), at `times` in frames."""
    radius = RADII[thing.size]
    room = SIZE - 2 * radius
    step = PACES[thing.pace] if thing.pace else 0.0
    along = DIRECTIONS[thing.direction] if thing.pace else (0, 0)
    across, down = (
        radius + _bounce(start * room + way * step * times, room)
        for start, way in zip(PLACES[thing.place], along, strict=True)
    )
    return across, down


def _bounce(where: Tensor, room: float) -> Tensor:
    """Fold a straight path into [0, room], as if it bounced at both ends."""
    folded = where.remainder(2 * room)
    return torch.minimum(folded, 2 * room - folded)


def draw_thing(thing: Thing, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of each pixel a thing covers, `f 1 h w`, and how brightly it is lit there."""
    axis = torch.arange(SIZE, dtype=torch.float32) + 0.5
    across, down = centre(thing, times)
    x = axis.view(1, 1, SIZE) - across.view(-1, 1, 1)
    y = axis.view(1, SIZE, 1) - down.view(-1, 1, 1)
    radius = RADII[thing.size]
    cover = (0.5 - _distance(thing.shape, x, y, radius)).clamp(0, 1)
    shade = 1 - 0.2 * ((x + y) / radius).clamp(-1, 1)
    return cover[:, None], shade[:, None]


def _distance(shape: str, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Return the signed distance in pixels from the edge of a shape around (0, 0), negative inside."""
    ax = x.abs()
    ay = y.abs()
    if shape == "ball":
        return (x.square() + y.square()).sqrt() - radius
    if shape == "box":
        return torch.maximum(ax, ay) - 0.85 * radius
    if shape == "diamond":
        return (ax + ay - 1.15 * radius) / 2**0.5
    if shape == "ring":
        return ((x.square() + y.square()).sqrt() - 0.76 * radius).abs() - 0.24 * radius
    arm = 0.32 * radius
    return torch.minimum(torch.maximum(ax - radius, ay - arm), torch.maximum(ax - arm, ay - radius))
