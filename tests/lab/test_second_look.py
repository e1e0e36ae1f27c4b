"""The world's picture, its oracle and presence worked out a second time, frame by frame in numpy.

Only the world's words and numbers are shared with the first time: nothing is imported that draws or compares.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sdvg_core.pocket.figures import figures_of
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.world import COLOURS, DIRECTIONS, GROUNDS, PACES, PLACES, RADII

SIDE = 64
HALF_A_SECOND = 8
SEAMS = (9, 21)
FRAMES = 33
PROMPTS = (
    "a big red ball drifts right from the left over night",
    "a small green ring runs left and up from the bottom over sand",
    "a small orange diamond runs right from the left behind a big black box at the middle over grass",
    "a small white cross runs down from the top in front of a big purple ball at the middle over sea",
)


# --- the picture


def folded(where: float, room: float) -> float:
    """A straight way between two walls, `room` apart."""
    trips, rest = divmod(where, room)
    return rest if trips % 2 == 0 else room - rest


def covered(thing, time):
    """How much of each pixel the thing covers, and its light there."""
    radius = RADII[thing.size]
    room = SIDE - 2 * radius
    way, pace = (DIRECTIONS[thing.direction], PACES[thing.pace]) if thing.pace else ((0, 0), 0.0)
    across, down = (
        radius + folded(PLACES[thing.place][axis] * room + way[axis] * pace * time, room) for axis in (0, 1)
    )
    y, x = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    x, y = x - across, y - down
    from_middle = np.hypot(x, y)
    bar = 0.32 * radius
    off = {
        "ball": from_middle - radius,
        "box": np.maximum(abs(x), abs(y)) - 0.85 * radius,
        "diamond": (abs(x) + abs(y) - 1.15 * radius) / math.sqrt(2),
        "ring": abs(from_middle - 0.76 * radius) - 0.24 * radius,
        "cross": np.minimum(np.maximum(abs(x) - radius, abs(y) - bar), np.maximum(abs(x) - bar, abs(y) - radius)),
    }[thing.shape]
    return np.clip(0.5 - off, 0, 1), 1 - 0.2 * np.clip((x + y) / radius, -1, 1)


def ground_of(scene):
    top, bottom = map(np.array, GROUNDS[scene.ground])
    down = ((np.arange(SIDE) + 0.5) / SIDE)[:, None, None]
    return np.broadcast_to(top + (bottom - top) * down, (SIDE, SIDE, 3))


def picture(scene, time):
    """The frame at a time, `h w c`, what things cover of it, and by thing which pixels show it."""
    frame, mask, shown = ground_of(scene), np.zeros((SIDE, SIDE)), {}
    for thing in scene.things:
        cover, light = covered(thing, max(time, 0))
        lit = np.array(COLOURS[thing.colour]) * light[..., None]
        frame = frame + (lit - frame) * cover[..., None]
        mask = mask + (1 - mask) * cover
        shown = {other: part * (1 - cover) for other, part in shown.items()} | {thing: cover}
    return np.clip(frame, 0, 1), mask, {thing: part > 0.5 for thing, part in shown.items()}


# --- what is said of a frame


def decibels(frame, scene, time):
    """The best likeness within half a second."""
    best = 0.0
    for lag in range(-HALF_A_SECOND, HALF_A_SECOND + 1):
        truth, mask, _ = picture(scene, time + lag)
        error = ((frame - truth) ** 2).mean(axis=2)
        things = (error * mask).sum() / max(mask.sum(), 1)
        ground = (error * (1 - mask)).sum() / max((1 - mask).sum(), 1)
        best = max(best, min(-10 * math.log10(max((things + ground) / 2, 1e-12)), 40.0))
    return best


def has_colour(frame, scene, colour):
    """The pixels whose nearest colour it is, of the world's in three lights and of their row's ground."""
    lights = {
        (name, light): np.linalg.norm(frame - np.minimum(np.array(of) * light, 1), axis=2)
        for name, of in COLOURS.items()
        for light in (0.85, 1.0, 1.15)
    }
    own = np.min([off for (name, _), off in lights.items() if name == colour], axis=0)
    others = np.min([off for (name, _), off in lights.items() if name != colour], axis=0)
    return (own < others) & (own < np.linalg.norm(frame - ground_of(scene), axis=2))


def placed(frame, scene, time):
    """1 if the mover is where it is due within half a second, 0 if not, NaN if it is hidden."""
    if picture(scene, time)[2][scene.mover].sum() < 12:
        return math.nan
    coloured = has_colour(frame, scene, scene.mover.colour)
    for lag in range(-HALF_A_SECOND, HALF_A_SECOND + 1):
        due = picture(scene, time + lag)[2][scene.mover]
        if due.sum() >= 12 and coloured[due].mean() > 0.5:
            return 1.0
    return 0.0


def spoilt_clip(scene):
    """A clip that runs ahead, fades, loses its mover and has noise."""
    draw = np.random.default_rng(3)
    frames = []
    for time in range(FRAMES):
        true = picture(scene, time + time / 3)[0]
        fading = min(max(time - 12, 0) / 18, 1)
        frames.append(
            np.clip((1 - fading) * true + fading * ground_of(scene) + draw.normal(0, 0.04, true.shape), 0, 1)
        )
    return np.stack(frames)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_figures_agree_with_other_code(prompt):
    """Catches: a lag too few, no mask, a colour by one light alone, hidden frames counted as lost."""
    scene = parse(prompt)
    clip = spoilt_clip(scene).astype(np.float32)
    first = figures_of(torch.from_numpy(clip).permute(0, 3, 1, 2), scene, SEAMS)
    quality = [decibels(frame, scene, time) for time, frame in enumerate(clip)]
    there = [placed(frame, scene, time) for time, frame in enumerate(clip)]
    assert set(there) >= {0.0, 1.0}
    assert np.isnan(there).any() == (scene.relation == "behind")
    assert first["quality"] == pytest.approx(np.mean(quality), abs=1e-3)
    assert first["last_block_quality"] == pytest.approx(np.mean(quality[SEAMS[-1] :]), abs=1e-3)
    assert first["at_its_place"] == np.nanmean(there)
    assert first["last_block_at_its_place"] == np.nanmean(there[SEAMS[-1] :])
