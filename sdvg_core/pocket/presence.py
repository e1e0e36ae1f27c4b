"""Whether a thing is in the picture, in its colour and at its place: what decibels do not say.

Bare ground scores as high as a poor thing. So every pixel is called by the nearest of the world's colours or of its
row's ground, and a thing is there if a third of the pixels that should show it have its colour, wherever they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .oracle import REACH
from .renderer import draw_thing
from .world import COLOURS, GROUNDS, SIZE, Scene, Thing

SHADES = (0.85, 1.0, 1.15)
ENOUGH = 1 / 3
LEAST_PIXELS = 12
"""Pixels that must be due before a thing is asked for; a smaller one is hidden behind the other."""


def presence(frames: Tensor, scene: Scene, times: Tensor) -> Tensor:
    """Return `f n` for frames `f c h w` due at `times` and n things: 1 if there, 0 if not, NaN if hidden."""
    called = _called(frames, scene)
    answers = []
    for thing, visible in zip(scene.things, _visible(scene, times), strict=True):
        due = visible.sum(dim=(1, 2))
        shown = (called == _number(thing)).sum(dim=(1, 2))
        answers.append((shown >= ENOUGH * due).float().masked_fill(due < LEAST_PIXELS, torch.nan))
    return torch.stack(answers, dim=1)


def at_its_place(frames: Tensor, scene: Scene) -> Tensor:
    """Return for the frames of a clip, `f c h w`, 1 if the mover is where it should be, 0 if not, NaN if hidden.

    It is if more than half of the pixels that should show it, up to REACH frames early or late, have its colour.
    """
    coloured = pixels_of_mover(frames, scene)
    count = len(frames)
    times = torch.arange(-REACH, count + REACH).clamp(min=0)
    visible = _visible(scene, times)[scene.things.index(scene.mover)]
    seen = torch.zeros(count, dtype=torch.bool)
    for first in range(2 * REACH + 1):
        here = visible[first : first + count]
        due = here.sum(dim=(1, 2))
        seen |= (due >= LEAST_PIXELS) & ((coloured & here).sum(dim=(1, 2)) > due / 2)
    hidden = visible[REACH : REACH + count].sum(dim=(1, 2)) < LEAST_PIXELS
    return seen.float().masked_fill(hidden, torch.nan)


def pixels_of_mover(frames: Tensor, scene: Scene) -> Tensor:
    """Return whether each pixel of frames `f c h w` has the mover's colour, wherever it is, `f h w`."""
    return _called(frames, scene) == _number(scene.mover)


def _number(thing: Thing) -> int:
    return tuple(COLOURS).index(thing.colour)


def _called(frames: Tensor, scene: Scene) -> Tensor:
    """Return the number of the nearest colour of each pixel, `f h w`; -1 if its row's ground is nearer."""
    rows = (torch.arange(SIZE, dtype=torch.float32) + 0.5) / SIZE
    top, bottom = (torch.tensor(colour).view(3, 1, 1) for colour in GROUNDS[scene.ground])
    ground = top + (bottom - top) * rows.view(1, SIZE, 1)
    colours = torch.tensor(tuple(COLOURS.values()))[:, None] * torch.tensor(SHADES)[:, None]
    pixels = frames.permute(0, 2, 3, 1)
    off, named = torch.cdist(pixels.flatten(0, 2), colours.clamp(max=1).flatten(0, 1)).min(dim=1)
    off, named = (of.view(pixels.shape[:3]) for of in (off, named // len(SHADES)))
    return named.masked_fill(off >= (frames - ground).square().sum(dim=1).sqrt(), -1)


def _visible(scene: Scene, times: Tensor) -> list[Tensor]:
    """Return the pixels that show each thing, the one farthest back first, `f h w` each."""
    covers = [draw_thing(thing, times.float())[0][:, 0] for thing in scene.things]
    shown = []
    for number, cover in enumerate(covers):
        for nearer in covers[number + 1 :]:
            cover = cover * (1 - nearer)
        shown.append(cover > 0.5)
    return shown
