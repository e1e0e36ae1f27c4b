"""Whether a thing is in the picture at all, in the right colour: what decibels do not say.

Bare ground scores as high as a poor thing. So every pixel is called by the nearest of the world's colours or of its
row's ground, and a thing is there if a third of the pixels that should show it have its colour, wherever they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from research.world import _draw
from sdvg_core.pocket.world import COLOURS, GROUNDS, SIZE, Scene

SHADES = (0.85, 1.0, 1.15)
ENOUGH = 1 / 3
LEAST = 12
"""Pixels that must be due before a thing is asked for; a smaller one is hidden behind the other."""


def presence(frames: Tensor, scene: Scene, times: Tensor) -> Tensor:
    """Return `f n` for frames `f c h w` due at `times` and n things: 1 if there, 0 if not, NaN if hidden."""
    rows = (torch.arange(SIZE, dtype=torch.float32) + 0.5) / SIZE
    top, bottom = (torch.tensor(colour).view(3, 1, 1) for colour in GROUNDS[scene.ground])
    ground = top + (bottom - top) * rows.view(1, SIZE, 1)
    colours = torch.tensor(tuple(COLOURS.values()))[:, None] * torch.tensor(SHADES)[:, None]
    pixels = frames.permute(0, 2, 3, 1)
    off, named = torch.cdist(pixels.flatten(0, 2), colours.clamp(max=1).flatten(0, 1)).min(dim=1)
    off, named = (of.view(pixels.shape[:3]) for of in (off, named // len(SHADES)))
    coloured = off < (frames - ground).square().sum(dim=1).sqrt()
    covers = [_draw(thing, times.float())[0][:, 0] for thing in scene.things]  # the one farthest back first
    found = []
    for number, thing in enumerate(scene.things):
        visible = covers[number]
        for nearer in covers[number + 1 :]:
            visible = visible * (1 - nearer)
        due = (visible > 0.5).sum(dim=(1, 2))
        shown = (coloured & (named == tuple(COLOURS).index(thing.colour))).sum(dim=(1, 2))
        found.append((shown >= ENOUGH * due).float().masked_fill(due < LEAST, torch.nan))
    return torch.stack(found, dim=1)
