"""The vocabulary of the small world: one or two flat things on a ground, of which one moves.

`renderer.py` renders the clip of a prompt, and `oracle.py` judges one; models run without them.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE = 64
"""Height and width of clips in pixels."""

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
"""Position of a thing, as fractions (across, down) of its range between the edges."""

GROUNDS = {
    "night": ((0.05, 0.06, 0.18), (0.16, 0.17, 0.36)),
    "dusk": ((0.36, 0.22, 0.42), (0.90, 0.58, 0.44)),
    "sea": ((0.20, 0.52, 0.66), (0.08, 0.32, 0.50)),
    "sand": ((0.93, 0.84, 0.66), (0.78, 0.64, 0.44)),
    "grass": ((0.52, 0.70, 0.38), (0.30, 0.50, 0.24)),
    "snow": ((0.80, 0.86, 0.92), (0.94, 0.95, 0.97)),
}
"""RGB colours of the ground at the top and the bottom."""

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
"""Pairs of colour and ground that can hardly be told apart; their prompts are outside the grammar."""

RELATIONS = {"front": "in front of", "behind": "behind", "beside": "beside"}
"""Relation of the first thing to the second, by its keyword."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing in the world. `pace`: empty if it stands still.

    `size`, `place` and `direction` of a mover may be empty (unspecified); it cannot be rendered then.
    """

    size: str
    colour: str
    shape: str
    place: str
    pace: str = ""
    direction: str = ""

    @property
    def text(self) -> str:
        """Its words in a prompt."""
        name = f"a {self.size} {self.colour} {self.shape}"
        where = f"from the {self.place}" if self.pace else f"at the {self.place}"
        return _joined(name, self.pace, self.direction, where if self.place else "")


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of a prompt: a mover, perhaps another thing, and the ground.

    `relation`: of the mover to the other thing ("in front of", "behind", "beside"); empty if it is alone. `ground`
    may be empty (unspecified).
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
    def things(self) -> tuple[Thing, ...]:
        """Its things, from back to front."""
        if self.other is None:
            return (self.mover,)
        return (self.mover, self.other) if self.relation == "behind" else (self.other, self.mover)


def _joined(*parts: str) -> str:
    return " ".join(" ".join(parts).split())


def clash(scene: Scene) -> str | None:
    """Return why a scene could not be recognised, or None."""
    for thing in scene.things:
        if (thing.colour, scene.ground) in TOO_CLOSE:
            return f"has a {thing.colour} {thing.shape} over {scene.ground}, which can hardly be seen"
    if scene.other and scene.other.colour == scene.mover.colour:
        return f"has two {scene.mover.colour} things, which can hardly be told apart"
    return None
