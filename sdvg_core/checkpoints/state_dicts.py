"""Choose a state dict of a training checkpoint: the averaged weights (EMA) or the raw ones.

Authors differ in which they sample from: Self-Forcing's README and demo use EMA, Causal-Forcing's README runs its
chunk-wise file without. So neither can be the rule for all files.
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
"""Choice -> name of the state dict in published training checkpoints."""
INNER_DICTS = (*STATE_DICTS.values(), "state_dict", "model", "module", "generator_lora")
"""Names of state dicts that hold a model, by priority if nothing is chosen."""
MOST_NAMED = 6
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a state dict. `weights`: ema or raw are required; auto takes `likely`, or else EMA first.

    `likely`: as stated by the checkpoint's preset. Raises `BadInput` for other values.
    """

    weights: Weights = AUTO
    likely: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)


UNSTATED = Choice()


def choose(file: str, names: Collection[str], choice: Choice) -> str:
    """Return the state dict to take among `names`; empty if none has a known name.

    `file`: its name, for errors. Raises `BadInput` if the chosen one is missing.
    """
    if choice.weights == AUTO:
        likely = [STATE_DICTS[choice.likely]] if choice.likely != AUTO else []
        return next((name for name in (*likely, *INNER_DICTS) if name in names), "")
    wanted = STATE_DICTS[choice.weights]
    if wanted in names:
        return wanted
    listed = ", ".join(shown(name) for name in sorted(names)[:MOST_NAMED])
    other = next((word for word, name in STATE_DICTS.items() if name in names), AUTO)
    raise BadInput(f"{file} has no {wanted}, but {listed or 'one set of weights without a name'}; choose {other}")


def shown(name: str) -> str:
    """Return a state dict's name as short printable text."""
    return " ".join(printable(name[:LONGEST_NAME]).split())


def note_on(file: str, taken: str, names: Collection[str], choice: Choice) -> str | None:
    """Return a note on an automatic choice, or None if there was nothing to choose."""
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
