"""Check the parts of a run that others wrote against what their protocols ask for: attributes, and their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from ..errors import BadInput, first_line, quoted
from .fields import LARGEST_INTEGER

Role = Literal["drafter", "target", "codec", "scorer", "router"]
Fits = tuple[Callable[[Any], bool], str]
"""Whether a value fits, and what fits in words."""
MISSING = object()


def is_whole(value: Any, least: int) -> bool:
    """True for a whole number from `least` on that is not absurdly large; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_INTEGER


def are_timesteps(value: Any) -> bool:
    """True for a tuple of finite numbers."""
    return isinstance(value, tuple) and all(
        isinstance(step, int | float) and not isinstance(step, bool) and math.isfinite(step) for step in value
    )


METHOD: Fits = (callable, "a method")
A_TEXT: Fits = (lambda value: isinstance(value, str), "a text")
FROM_0: Fits = (lambda value: is_whole(value, 0), "a whole number from 0")
FROM_1: Fits = (lambda value: is_whole(value, 1), "a whole number from 1")
MODEL: Mapping[str, Fits] = {
    "generate": METHOD,
    "name": A_TEXT,
    "block_frames": FROM_1,
    "latent_channels": FROM_1,
    "timesteps": (lambda value: are_timesteps(value) and bool(value), "a tuple of one number or more"),
    "first_timesteps": (are_timesteps, "a tuple of numbers"),
    "anchor_horizon": FROM_0,
}
CODEC: Mapping[str, Fits] = {
    "decode": METHOD,
    "encode": METHOD,
    "latent_channels": FROM_1,
    "temporal_stride": FROM_1,
    "spatial_stride": FROM_1,
}
ANY: Fits = (lambda value: True, "")
PROTOCOLS: Mapping[Role, tuple[str, Mapping[str, Fits]]] = {
    "drafter": ("BlockGenerator", MODEL),
    "target": ("BlockGenerator", MODEL),
    "codec": ("VideoCodec", CODEC),
    "scorer": ("Scorer", {"score": METHOD, "describe": METHOD}),
    "router": ("Router", {"keep": METHOD, "needs_scorer": ANY}),
}
"""By role: the protocol's name, and what it asks for."""
OPTIONAL_MEMBERS: Mapping[str, Fits] = {
    "key": A_TEXT,
    "draft_steps": (lambda value: value is None or is_whole(value, 1), "a whole number from 1, or None"),
}


def check_part(role: Role, part: Any) -> None:
    """Raise `BadInput` unless a part fits its protocol."""
    protocol, needed = PROTOCOLS[role]
    if isinstance(part, type):
        raise BadInput(f"the {role} is the class {part.__name__:.40}; give an object of it")
    with faults_of(role, part):
        for name, (fits, words) in {**needed, **OPTIONAL_MEMBERS}.items():
            value = getattr(part, name, MISSING)
            if value is MISSING and name in needed:
                raise BadInput(
                    f"{part_name(part)} is no {role} without {name}; give it what sdvg_core.{protocol} has"
                )
            if value is not MISSING and not fits(value):
                raise BadInput(f"the {role} {part_name(part)} has {name} {quoted(value, 30)}; give it {words}")


@contextmanager
def faults_of(role: str, part: Any) -> Iterator[None]:
    """Turn exceptions of a part into `BadInput` with its name, except when memory runs out."""
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        if isinstance(error, BadInput | MemoryError) or kind == "OutOfMemoryError":  # torch's
            raise
        raise BadInput(f"the {role} {part_name(part)} raised {kind} ({first_line(error)}); mend it") from error


def part_name(part: Any) -> str:
    """Return the name of a part's class, shortened."""
    return f"{type(part).__name__:.40}"
