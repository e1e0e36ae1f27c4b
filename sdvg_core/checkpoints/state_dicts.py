"""Which of the state dicts in a training checkpoint is the model: its averaged weights (EMA) or the raw ones.

A training checkpoint may hold the same model several times, and authors differ in which they sample from:
Self-Forcing's README and demo take EMA, Causal-Forcing's README runs its chunk-wise file without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ..devices.execution import AUTO
from ..errors import BadInput, printable
from ..settings import check_fields

Weights = Literal["auto", "ema", "raw"]
STATE_DICTS: Mapping[str, str] = {"ema": "generator_ema", "raw": "generator"}
"""A choice -> the name of the state dict, in every published training checkpoint that has both."""
INNER_DICTS = (*STATE_DICTS.values(), "state_dict", "model", "module", "generator_lora")
"""The names of state dicts that hold a model; without a choice, the first that is there is taken."""
MOST_NAMED = 6
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Choice:
    """Which state dict to take: `weights`, if it is ema or raw, and a file without it is refused.

    `likely`: for auto, what the checkpoint's preset states: it is taken if the file has it, otherwise EMA first.
    Raises `BadInput` for other words.
    """

    weights: Weights = AUTO
    likely: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)


UNSTATED = Choice()


def choose(file: str, names: Collection[str], choice: Choice) -> str:
    """Return which of the state dicts with these `names` to take; empty if none has a known name.

    `file`: its name, for the message. Raises `BadInput` if the chosen one is not there.
    """
    if choice.weights == AUTO:
        likely = [STATE_DICTS[choice.likely]] if choice.likely != AUTO else []
        return next((name for name in (*likely, *INNER_DICTS) if name in names), "")
    wanted = STATE_DICTS[choice.weights]
    if wanted in names:
        return wanted
    some = ", ".join(shown(name) for name in sorted(names)[:MOST_NAMED])
    other = next((word for word, name in STATE_DICTS.items() if name in names), AUTO)
    raise BadInput(f"{file} has no {wanted}, but {some or 'one set of weights without a name'}; choose {other}")


def shown(name: str) -> str:
    """Return a state dict's name on one line, and not too long."""
    return " ".join(printable(name[:LONGEST_NAME]).split())


def note_on(file: str, taken: str, names: Collection[str], choice: Choice) -> str | None:
    """Return a note on a choice that was made automatically; None if there was no choice."""
    if choice.weights != AUTO or taken not in STATE_DICTS.values():
        return None
    stated = STATE_DICTS.get(choice.likely)
    if stated is None and all(name in names for name in STATE_DICTS.values()):
        both = " and ".join(STATE_DICTS.values())
        return (
            f"{file} holds two sets of weights, {both}, and nothing states which one is meant: {taken} was taken. "
            "State ema or raw to choose."
        )
    if stated is not None and taken != stated:
        return f"The preset is for {choice.likely} weights, but {file} holds no {stated}: {taken} was taken."
    return None
