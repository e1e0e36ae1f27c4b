"""Parse the prompts of the small world; reject other text with the grammar, or map it to the nearest prompt."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..errors import BadInput
from ..text.prompts import PromptSchedule, check_prompt
from .world import COLOURS, DIRECTIONS, GROUNDS, PACES, PLACES, RADII, RELATIONS, SHAPES, Scene, Thing, clash

GRAMMAR = f"""\
PROMPT    = MOVER [COMPANY] over GROUND
MOVER     = a SIZE COLOUR SHAPE PACE DIRECTION from the PLACE
COMPANY   = in front of STANDING | behind STANDING | beside MOVER
STANDING  = a SIZE COLOUR SHAPE at the PLACE
SIZE      = {" | ".join(RADII)}
COLOUR    = {" | ".join(COLOURS)}
SHAPE     = {" | ".join(SHAPES)}
PACE      = {" | ".join(PACES)}
DIRECTION = {" | ".join(DIRECTIONS)}
PLACE     = {" | ".join(PLACES)}
GROUND    = {" | ".join(GROUNDS)}"""

OUTSIDE = "is outside the grammar"
READ = 1000
"""Characters of a prompt that are read to find the nearest one."""


def parse(prompt: str) -> Scene:
    """Return the scene of a prompt. Raises `BadInput`, with the grammar and the nearest prompt, for other text."""
    scene, problem = _read(prompt)
    if scene and not problem:
        return scene
    other = nearest(prompt).text
    raise BadInput(
        f"the prompt {prompt!r:.120} {problem}; try the nearest one, {other!r}",
        help=GRAMMAR,
    )


def understand(prompt: str, *, strict: bool = False) -> tuple[Scene, str]:
    """Return the scene of any text, with a note if it is only the nearest one.

    `strict`: raise `BadInput` like `parse` instead. Raises `BadInput` for an empty or unprintable prompt.
    """
    check_prompt(prompt)
    _, problem = _read(prompt)
    if strict or not problem:
        return parse(prompt), ""
    scene = nearest(prompt)
    return scene, f"The prompt {problem}; the nearest prompt is shown: {scene.text}."


def nearest(prompt: str) -> Scene:
    """Return the scene with every word of the grammar found in `prompt`, and defaults for the rest."""
    words: list[str] = []
    for word in re.findall(r"[a-z]+", prompt[:READ].lower()):
        close = difflib.get_close_matches(word, _WORDS, 1, 0.75) if len(word) > 3 else []
        words += [word] if word in _WORDS else close
    link = next((i for i, word in enumerate(words) if word in RELATIONS), len(words))
    mover = _understood(words[:link])
    ground = _first(GROUNDS, words, "sand")
    if not any(word in SHAPES for word in words[link:]):
        return _recoloured(Scene(mover, ground))
    relation = RELATIONS[words[link]]
    other = _understood(words[link:])
    if relation != "beside":
        other = replace(other, pace="", direction="")
    return _recoloured(Scene(mover, ground, relation, other))


def _read(prompt: str) -> tuple[Scene | None, str | None]:
    """Return the scene of a prompt and its fault, or None for each."""
    match = _PROMPT.fullmatch(" ".join(prompt.lower().split()))
    scene = _scene_of(match) if match else None
    return scene, clash(scene) if scene else OUTSIDE


def _recoloured(scene: Scene) -> Scene:
    """Return the scene in the first colours that can be told apart, its own if possible."""
    movers = _in_all_colours(scene.mover)
    others = _in_all_colours(scene.other) if scene.other else [None]
    candidates = (replace(scene, mover=mover, other=other) for mover in movers for other in others)
    return next(candidate for candidate in candidates if clash(candidate) is None)


def _in_all_colours(thing: Thing) -> list[Thing]:
    return [replace(thing, colour=colour) for colour in (thing.colour, *COLOURS)]


def _understood(words: Sequence[str]) -> Thing:
    """Return the thing that words describe, with defaults for missing ones."""
    where = next((i for i, word in enumerate(words) if word in ("from", "at")), len(words))
    return Thing(
        _first(RADII, words, "big"),
        _first(COLOURS, words, "red"),
        _first(SHAPES, words, "ball"),
        _longest(PLACES, words[where:], "left"),
        _first(PACES, words, "drifts"),
        _longest(DIRECTIONS, words[:where], "right"),
    )


def _first(options: Collection[str], words: Sequence[str], otherwise: str) -> str:
    return next((word for word in words if word in options), otherwise)


def _longest(options: Collection[str], words: Sequence[str], otherwise: str) -> str:
    fitting = [option for option in options if set(option.split()) - {"and"} <= set(words)]
    return max(fitting, key=len, default=otherwise)


_WORDS = sorted(
    {
        word
        for options in (RADII, COLOURS, SHAPES, PACES, DIRECTIONS, PLACES, GROUNDS, RELATIONS, ("from", "at"))
        for option in options
        for word in option.split()
    }
)


def _one_of(name: str, options: Collection[str]) -> str:
    return f"(?P<{name}>{'|'.join(sorted(options, key=len, reverse=True))})"


def _thing_pattern(n: str) -> str:
    return f"a {_one_of('size' + n, RADII)} {_one_of('colour' + n, COLOURS)} {_one_of('shape' + n, SHAPES)}"


def _mover_pattern(n: str) -> str:
    return (
        f"{_thing_pattern(n)} {_one_of('pace' + n, PACES)} {_one_of('direction' + n, DIRECTIONS)} "
        f"from the {_one_of('place' + n, PLACES)}"
    )


_PROMPT = re.compile(
    f"{_mover_pattern('1')}"
    f"(?: (?P<stands>in front of|behind) {_thing_pattern('2')} at the {_one_of('place2', PLACES)}"
    f"| (?P<moves>beside) {_mover_pattern('3')})?"
    f" over {_one_of('ground', GROUNDS)}"
)


def _scene_of(match: re.Match[str]) -> Scene:
    part = match.groupdict()

    def thing(n: str) -> Thing:
        names = ("size", "colour", "shape", "place", "pace", "direction")
        return Thing(*(part.get(name + n) or "" for name in names))

    other = thing("2") if part["stands"] else thing("3") if part["moves"] else None
    return Scene(thing("1"), part["ground"], part["stands"] or part["moves"] or "", other)


def understood(prompts: Sequence[PromptSchedule]) -> tuple[tuple[PromptSchedule, ...], list[str]]:
    """Replace prompts by the nearest ones of the embedded models' world; return them with notes on each change."""
    scenes = {text: understand(text) for prompt in prompts for text in prompt.texts}
    nearest_ones = (
        replace(prompt, entries=tuple((start, scenes[text][0].text) for start, text in prompt.entries))
        for prompt in prompts
    )
    return tuple(nearest_ones), [note for _, note in scenes.values() if note]
