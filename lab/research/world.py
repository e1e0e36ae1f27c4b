"""Prompts of the small world, drawn at random, of which some are held out of training."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

from sdvg_core.pocket.world import (
    COLOURS,
    DIRECTIONS,
    GROUNDS,
    PACES,
    PLACES,
    RADII,
    RELATIONS,
    SHAPES,
    Scene,
    Thing,
    clash,
)

HELD_OUT_SHARE = 8
"""One prompt in this many is held out of training."""


def is_held_out(scene: Scene) -> bool:
    """Whether a scene is kept out of training: a property of its words alone.

    Training reads no words that are held out, and shows no clip whose scene, said in full, is held out. An open
    prompt that is held out may well allow clips that were shown under other words.
    """
    return hashlib.sha256(scene.text.encode()).digest()[0] % HELD_OUT_SHARE == 0


def draw_scene(generator: random.Random, *, held_out: bool) -> Scene:
    """Draw a determined scene of the training prompts or of those held out of them."""
    while True:
        scene = draw_any(generator)
        if is_held_out(scene) == held_out and clash(scene) is None:
            return scene


def held_out_prompts(count: int, seed: int = 0) -> tuple[str, ...]:
    """Return `count` different prompts that no model of the set was trained on; the same for the same seed."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(draw_scene(generator, held_out=True).text)
    return tuple(found)


def draw_any(generator: random.Random) -> Scene:
    """Draw a determined scene, whether it can be seen or not."""
    mover = _draw_mover(generator)
    relation = generator.choice(("", "", "", *RELATIONS.values()))
    other = _draw_mover(generator) if relation else None
    if other and relation != "beside":
        other = replace(other, pace="", direction="")
    return Scene(mover, generator.choice(tuple(GROUNDS)), relation, other)


def _draw_mover(generator: random.Random) -> Thing:
    size, colour, place, pace, direction = (
        generator.choice(tuple(options)) for options in (RADII, COLOURS, PLACES, PACES, DIRECTIONS)
    )
    return Thing(size, colour, generator.choice(SHAPES), place, pace, direction)
