"""Scenes that differ from a given one in a single word or two: the hard negatives of the reward model."""

from __future__ import annotations

import random
from dataclasses import replace

from sdvg_core.pocket.world import (
    COLOURS,
    DIRECTIONS,
    GROUNDS,
    PACES,
    PLACES,
    RADII,
    SHAPES,
    TOO_CLOSE,
    Scene,
    Thing,
)

OPTIONS = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "size": tuple(RADII),
    "place": tuple(PLACES),
    "pace": tuple(PACES),
    "direction": tuple(DIRECTIONS),
}
VISIBLE = ("colour", "shape", "size", "ground")
"""What a single frame shows of any scene, whenever it was taken."""


def changed(scene: Scene, attribute: str, generator: random.Random) -> Scene:
    """Return the scene with another value of `attribute` ("ground", or one of `OPTIONS` in one of its things)."""
    while True:
        if attribute == "ground":
            candidate = replace(scene, ground=_another(tuple(GROUNDS), scene.ground, generator))
        else:
            candidate = _with_thing_changed(scene, attribute, generator)
        if can_be_seen(candidate):
            return candidate


def can_be_seen(scene: Scene) -> bool:
    """Whether a prompt of the grammar may say this: nothing of the ground's colour, no two things of one colour."""
    colours = [thing.colour for thing in scene.things]
    return len(set(colours)) == len(colours) and not any((c, scene.ground) in TOO_CLOSE for c in colours)


def _with_thing_changed(scene: Scene, attribute: str, generator: random.Random) -> Scene:
    things = [thing for thing in scene.things if getattr(thing, attribute)]
    old = generator.choice(things)
    new = _changed_thing(old, attribute, generator)
    if old is scene.mover:
        return replace(scene, mover=new)
    return replace(scene, other=new)


def _changed_thing(thing: Thing, attribute: str, generator: random.Random) -> Thing:
    value = _another(OPTIONS[attribute], getattr(thing, attribute), generator)
    return replace(thing, **{attribute: value})


def _another(options: tuple[str, ...], value: str, generator: random.Random) -> str:
    return generator.choice([option for option in options if option != value])
