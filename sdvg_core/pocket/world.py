"""A small world: prompts and the clips they allow, rendered exactly for any moment.

One or two flat things on a lit ground; a moving thing goes straight and bounces off the edges. The position of
everything is a closed formula of time, so a clip can be rendered at any frame count, or at moments between frames.

Most prompts determine the clip. A prompt may also leave something open: the size of its first thing, where that
starts, where it goes, and the ground. Then every clip of a determined scene that fits its words is right.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

SIZE = 64
"""Height and width of the world in pixels, and of its pixels in the world: clips are 64 x 64."""

RADII = {"small": 6.0, "big": 10.0}
COLOURS = {
    "red": (0.86, 0.13, 0.16),
    "orange": (0.98, 0.55, 0.10),
    "yellow": (0.98, 0.88, 0.20),
    "green": (0.10, 0.72, 0.25),
    "blue": (0.12, 0.30, 0.92),
    "purple": (0.62, 0.18, 0.78),
    "white": (0.98, 0.98, 0.98),
    "black": (0.05, 0.05, 0.06),
}
SHAPES = ("ball", "box", "diamond", "ring", "cross")
PACES = {"crawls": 0.3, "drifts": 0.6, "runs": 1.0}
"""Pixels per frame along each axis of the direction."""

DIRECTIONS = {
    "right": (1, 0),
    "left": (-1, 0),
    "down": (0, 1),
    "up": (0, -1),
    "right and down": (1, 1),
    "right and up": (1, -1),
    "left and down": (-1, 1),
    "left and up": (-1, -1),
}
PLACES = {
    "left": (0.0, 0.5),
    "right": (1.0, 0.5),
    "top": (0.5, 0.0),
    "bottom": (0.5, 1.0),
    "middle": (0.5, 0.5),
    "top left": (0.0, 0.0),
    "top right": (1.0, 0.0),
    "bottom left": (0.0, 1.0),
    "bottom right": (1.0, 1.0),
}
"""Where a thing is between the edges it can touch, as fractions of (across, down)."""

GROUNDS = {
    "night": ((0.05, 0.06, 0.18), (0.16, 0.17, 0.36)),
    "dusk": ((0.36, 0.22, 0.42), (0.90, 0.58, 0.44)),
    "sea": ((0.20, 0.52, 0.66), (0.08, 0.32, 0.50)),
    "sand": ((0.93, 0.84, 0.66), (0.78, 0.64, 0.44)),
    "grass": ((0.52, 0.70, 0.38), (0.30, 0.50, 0.24)),
    "snow": ((0.80, 0.86, 0.92), (0.94, 0.95, 0.97)),
}
"""Colours of the ground at the top and at the bottom of the picture."""

TOO_CLOSE = {
    ("blue", "night"),
    ("black", "night"),
    ("blue", "sea"),
    ("green", "grass"),
    ("white", "snow"),
    ("yellow", "sand"),
    ("orange", "dusk"),
    ("purple", "dusk"),
}
"""Pairs of a thing and a ground that a person could hardly tell apart; such prompts are outside the grammar."""

RELATIONS = {"front": "in front of", "behind": "behind", "beside": "beside"}
"""How the first thing relates to the second, by the word that reveals it."""

HELD_OUT_SHARE = 8
"""One prompt in this many is held out of training."""

OPENABLE = ("size", "start", "direction", "ground")
"""What a prompt may leave open; size, start and direction are those of the first thing."""

MOST_OPEN = 2
"""How many of them one prompt may leave open, so that at most 72 clips are right."""

KINDS_OF_OPEN = tuple(slots for count in range(1, MOST_OPEN + 1) for slots in combinations(OPENABLE, count))
"""Every choice of what to leave open, the single ones first."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something flat in the world. `pace` is empty for one that stands still.

    `size`, and of one that moves `place` and `direction`, may be empty: left open. It can not be rendered then.
    """

    size: str
    colour: str
    shape: str
    place: str
    pace: str = ""
    direction: str = ""

    @property
    def text(self) -> str:
        """The words for it."""
        name = f"a {self.size} {self.colour} {self.shape}"
        where = f"from the {self.place}" if self.pace else f"at the {self.place}"
        return _joined(name, self.pace, self.direction, where if self.place else "")

    def centre(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return where its middle is, in pixels (across, down), at `times` in frames."""
        radius = RADII[self.size]
        room = SIZE - 2 * radius
        step = PACES[self.pace] if self.pace else 0.0
        along = DIRECTIONS[self.direction] if self.pace else (0, 0)
        across, down = (
            radius + _bounce(start * room + way * step * times, room)
            for start, way in zip(PLACES[self.place], along, strict=True)
        )
        return across, down


@dataclass(frozen=True, slots=True)
class Scene:
    """What a prompt says: a thing that moves, perhaps another one, and the ground.

    `relation`: how the first relates to the second, "in front of", "behind" or "beside"; empty if it is alone.
    `ground`, and some words of the mover, may be empty: left open. `completions` are the scenes that fit then.
    """

    mover: Thing
    ground: str
    relation: str = ""
    other: Thing | None = None

    @property
    def text(self) -> str:
        """The prompt."""
        company = f"{self.relation} {self.other.text}" if self.other else ""
        return _joined(self.mover.text, company, f"over {self.ground}" if self.ground else "")

    @property
    def open(self) -> tuple[str, ...]:
        """What it leaves open, of OPENABLE and in its order; nothing for a scene that determines the clip."""
        mover = self.mover
        said = (mover.size, mover.place, mover.direction or not mover.pace, self.ground)
        return tuple(name for name, word in zip(OPENABLE, said, strict=True) if not word)

    @property
    def kind(self) -> str:
        """The class of the prompt, by what it leaves open: "nothing", "start", "start and direction" and so on."""
        return " and ".join(self.open) or "nothing"

    @property
    def held_out(self) -> bool:
        """Whether it is kept out of training: a property of its words alone.

        Training reads no words that are held out, and shows no clip whose scene, said in full, is held out. An open
        prompt that is held out may well allow clips that were shown under other words.
        """
        return hashlib.sha256(self.text.encode()).digest()[0] % HELD_OUT_SHARE == 0

    @property
    def things(self) -> tuple[Thing, ...]:
        """Its things, the one farthest back first."""
        if self.other is None:
            return (self.mover,)
        return (self.mover, self.other) if self.relation == "behind" else (self.other, self.mover)


def render(scene: Scene, times: Tensor) -> Tensor:
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
        cover, shade = _draw(thing, times.float())
        colour = torch.tensor(COLOURS[thing.colour]).view(1, 3, 1, 1) * shade
        frames = frames + (colour - frames) * cover
        mask = mask + (1 - mask) * cover
    return frames.clamp(0, 1), mask


def opened(scene: Scene, slots: Collection[str]) -> Scene:
    """Return the scene with some of OPENABLE left open."""
    names = {"size": "size", "start": "place", "direction": "direction"}
    mover = replace(scene.mover, **{names[slot]: "" for slot in slots if slot in names})
    return replace(scene, mover=mover, ground="" if "ground" in slots else scene.ground)


def completions(scene: Scene) -> tuple[Scene, ...]:
    """Return the determined scenes that a scene allows, in a fixed order; those that `clash` are left out."""
    mover, is_open = scene.mover, scene.open
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
        scene = opened(_draw_any(generator), chosen)
        if scene.held_out == held_out and clash(scene) is None:
            return scene


def draw_scene(generator: random.Random, *, held_out: bool) -> Scene:
    """Draw a determined scene of the training prompts or of those held out of them."""
    while True:
        scene = _draw_any(generator)
        if scene.held_out == held_out and clash(scene) is None:
            return scene


def held_out_prompts(count: int, seed: int = 0) -> tuple[str, ...]:
    """Return `count` different prompts that no model of the set was trained on; the same for the same seed.

    They determine their clips; those of `open_scenes` do not.
    """
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(draw_scene(generator, held_out=True).text)
    return tuple(found)


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


def _joined(*parts: str) -> str:
    return " ".join(" ".join(parts).split())


def _bounce(where: Tensor, room: float) -> Tensor:
    """Fold a straight path into [0, room], as if it bounced at both ends."""
    folded = where.remainder(2 * room)
    return torch.minimum(folded, 2 * room - folded)


def _draw(thing: Thing, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much of each pixel a thing covers, `f 1 h w`, and how brightly it is lit there."""
    axis = torch.arange(SIZE, dtype=torch.float32) + 0.5
    across, down = thing.centre(times)
    x = axis.view(1, 1, SIZE) - across.view(-1, 1, 1)
    y = axis.view(1, SIZE, 1) - down.view(-1, 1, 1)
    radius = RADII[thing.size]
    cover = (0.5 - _distance(thing.shape, x, y, radius)).clamp(0, 1)
    shade = 1 - 0.2 * ((x + y) / radius).clamp(-1, 1)
    return cover[:, None], shade[:, None]


def _distance(shape: str, x: Tensor, y: Tensor, radius: float) -> Tensor:
    """Return the signed distance in pixels from the edge of a shape around (0, 0), negative inside."""
    ax, ay = x.abs(), y.abs()
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


def _draw_any(generator: random.Random) -> Scene:
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


def clash(scene: Scene) -> str | None:
    """Return why a person could not see what the scene says, or None."""
    for thing in scene.things:
        if (thing.colour, scene.ground) in TOO_CLOSE:
            return f"has a {thing.colour} {thing.shape} over {scene.ground}, which can hardly be seen"
    if scene.other and scene.other.colour == scene.mover.colour:
        return f"has two {scene.mover.colour} things, which can hardly be told apart"
    return None
