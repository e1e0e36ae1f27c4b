"""Prompts that leave something open: the size of the first thing, where that starts, where it goes, and the ground.

Then every clip of a determined scene that fits the words is right, and the first block makes the choice: the whole
video is held against the clip its first block fits best. So a later block that changes its mind is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from research import metrics
from research.metrics import BEST, Verdict, errors_by_lag, weighted_error
from research.world import draw_any, is_held_out, render_with_mask
from sdvg_core.pocket.world import DIRECTIONS, GROUNDS, PLACES, RADII, Scene, clash

GLANCES, FINALISTS = 3, 8
"""Frames by which all completions of an open prompt are compared first, and how many are then looked at closely."""

OPENABLE = ("size", "start", "direction", "ground")
"""What a prompt may leave open; size, start and direction are those of the first thing."""

MOST_OPEN = 2
"""How many of them one prompt may leave open, so that at most 72 clips are right."""

KINDS_OF_OPEN = tuple(slots for count in range(1, MOST_OPEN + 1) for slots in combinations(OPENABLE, count))
"""Every choice of what to leave open, the single ones first."""


def left_open(scene: Scene) -> tuple[str, ...]:
    """Return what a scene leaves open, of OPENABLE and in its order; nothing if it determines the clip."""
    mover = scene.mover
    stated = (mover.size, mover.place, mover.direction or not mover.pace, scene.ground)
    return tuple(name for name, word in zip(OPENABLE, stated, strict=True) if not word)


def opened(scene: Scene, slots: Collection[str]) -> Scene:
    """Return the scene with some of OPENABLE left open."""
    names = {"size": "size", "start": "place", "direction": "direction"}
    mover = replace(scene.mover, **{names[slot]: "" for slot in slots if slot in names})
    return replace(scene, mover=mover, ground="" if "ground" in slots else scene.ground)


def completions(scene: Scene) -> tuple[Scene, ...]:
    """Return the determined scenes that a scene allows, in a fixed order; those that `clash` are left out."""
    mover, is_open = scene.mover, left_open(scene)
    found = (
        replace(scene, mover=replace(mover, size=size, place=place, direction=direction), ground=ground)
        for size in (RADII if "size" in is_open else [mover.size])
        for place in (PLACES if "start" in is_open else [mover.place])
        for direction in (DIRECTIONS if "direction" in is_open else [mover.direction])
        for ground in (GROUNDS if "ground" in is_open else [scene.ground])
    )
    return tuple(candidate for candidate in found if clash(candidate) is None)


def draw_open_scene(generator: random.Random, *, held_out: bool, slots: Sequence[str] = ()) -> Scene:
    """Draw a scene of open prompts, of training's or held out; `slots`: what it leaves open, drawn if empty."""
    chosen = tuple(slots) or generator.choice(KINDS_OF_OPEN)
    while True:
        scene = opened(draw_any(generator), chosen)
        if is_held_out(scene) == held_out and clash(scene) is None:
            return scene


def open_scenes(count: int, seed: int = 0) -> tuple[Scene, ...]:
    """Return `count` different open scenes that no model was trained on, of every kind equally often.

    The same for the same seed; the kinds take turns.
    """
    generator = random.Random(f"open prompts {seed}")
    found: dict[Scene, None] = {}
    while len(found) < count:
        slots = KINDS_OF_OPEN[len(found) % len(KINDS_OF_OPEN)]
        found.setdefault(draw_open_scene(generator, held_out=True, slots=slots))
    return tuple(found)


def judge(frames: Tensor, scene: Scene, seams: Sequence[int] = ()) -> Verdict:
    """Judge the whole clip of a scene, which may be open, as `metrics.judge` does.

    The frames before the first seam choose; all of them if there is none.
    """
    return metrics.judge(frames, choice(frames[: min(seams, default=len(frames))], scene), seams)


def choice(frames: Tensor, scene: Scene) -> Scene:
    """Return the completion of a scene that a clip's first frames `f c h w` fit best, early or late allowed.

    Of those that fit equally well, the first.
    """
    candidates = completions(scene)
    if len(candidates) > FINALISTS:
        glances = torch.linspace(0, len(frames) - 1, GLANCES).round().long()
        found = [weighted_error(frames[glances], *render_with_mask(one, glances)).sum() for one in candidates]
        order = torch.stack(found).argsort(stable=True)[:FINALISTS]
        candidates = tuple(candidates[number] for number in sorted(order.tolist()))
    if len(candidates) == 1:
        return candidates[0]
    errors = [errors_by_lag(frames, one)[1].amin(dim=0).mean() for one in candidates]
    return candidates[int(torch.stack(errors).argmin())]


def still_quality(frames: Tensor, scene: Scene, length: int = 105) -> Tensor:
    """Return (f,) decibels of each frame against the best moment of any clip the scene allows, at any time.

    This is all a single frame can show, and what the reward model is trained to predict.
    """
    found = []
    for one in completions(scene):
        truth, mask = render_with_mask(one, torch.arange(length, dtype=torch.float32))
        found.append(torch.stack([weighted_error(frame, truth, mask).min() for frame in frames]))
    errors = torch.stack(found).amin(dim=0)
    return (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST)
