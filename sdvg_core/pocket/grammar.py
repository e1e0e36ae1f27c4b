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

LETTERS_READ = 1000
"""Characters of a prompt that are read to find the nearest one."""


def parse(prompt: str) -> Scene:
    """Return the scene of a prompt. Raises `BadInput`, with the grammar and the nearest prompt, for other text."""
    scene, problem = _read(prompt)
    if problem:
        fault = f"the prompt {prompt!r:.120} {problem}"
        raise BadInput(f"{fault}; try the nearest one, {_recoloured(scene).text!r}", help=GRAMMAR)
    return scene


def understand(prompt: str, *, strict: bool = False) -> tuple[Scene, str]:
    """Return the scene of any text, with a note if it is only the nearest one.

    `strict`: raise `BadInput` like `parse` instead. Raises `BadInput` for an empty or unprintable prompt.
    """
    check_prompt(prompt)
    scene, problem = _read(prompt)
    if strict or not problem:
        return parse(prompt), ""
    scene = _recoloured(scene)
    return scene, f"The prompt {problem}; shown instead: {scene.text}."


def _read(prompt: str) -> tuple[Scene, str | None]:
    """Return the scene with every word of the grammar found in `prompt`, and defaults for the rest; and a fault.

    A prompt of the grammar is the one whose scene has its very words.
    """
    words: list[str] = []
    for word in re.findall(r"[a-z]+", prompt[:LETTERS_READ].lower()):
        close = difflib.get_close_matches(word, _WORDS, 1, 0.75) if len(word) > 3 else []
        words += [word] if word in _WORDS else close
    link = next((i for i, word in enumerate(words) if word in RELATIONS), len(words))
    scene = Scene(_understood(words[:link]), _first(GROUNDS, words, "sand"))
    if any(word in SHAPES for word in words[link:]):
        relation = RELATIONS[words[link]]
        other = _understood(words[link:])
        if relation != "beside":
            other = replace(other, pace="", direction="")
        scene = replace(scene, relation=relation, other=other)
    if scene.text != " ".join(prompt.lower().split()):
        return scene, "is not of the small world"
    return scene, clash(scene)


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


def understood(prompts: Sequence[PromptSchedule]) -> tuple[tuple[PromptSchedule, ...], list[str]]:
    """Replace prompts by the nearest ones of the embedded models' world; return them with notes on each change."""
    scenes = {text: understand(text) for prompt in prompts for text in prompt.texts}
    nearest_ones = (
        replace(prompt, entries=tuple((start, scenes[text][0].text) for start, text in prompt.entries))
        for prompt in prompts
    )
    return tuple(nearest_ones), [note for _, note in scenes.values() if note]
