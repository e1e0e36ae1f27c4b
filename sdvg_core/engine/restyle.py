"""Restyling: new blocks begin from a clip, at a strength that the user sets.

Every block starts from the input's latents at the same place, with noise added, not from noise alone. A word skips
the first steps of the schedule: the input replaces their estimates. A number lowers the noise of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadInput
from .types import Span

if TYPE_CHECKING:
    from torch import Tensor

WORDS = {"strong": 1, "medium": 2, "light": 3}
"""How many steps each skips: on four steps, 6, 17 and 37 % of the input are left under the noise."""
USUAL = "medium"
LEAST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Strength:
    """How much of a block is remade: all steps after `skip`, with `share` of the unshifted noise levels."""

    skip: int = 0
    share: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Restyle(Strength):
    """What a block is made from besides noise: the `latents` of an input, `b c t h w`; by default nothing."""

    latents: Tensor | None = None


def read_strength(text: str) -> Strength:
    """Return a strength from one of `WORDS`, or a number up to 1. Raises `BadInput` for anything else."""
    if text in WORDS:
        return Strength(skip=WORDS[text])
    try:
        share = float(text)
    except (TypeError, ValueError):
        share = 0.0
    if not LEAST_SHARE <= share <= 1:
        raise BadInput(f"{text!r:.40} is no strength; give {', '.join(WORDS)} or a number from {LEAST_SHARE} to 1")
    return Strength(share=share)


def read_strengths(text: str, blocks: int) -> tuple[Strength, ...]:
    """Return the strength of each block from `medium`, or `medium,7:0.6`: another one from block 7 on."""
    usual, *later = text.split(",")
    strengths = [read_strength(usual)] * blocks
    for change in later:
        start, _, strength = change.partition(":")
        if not (start.isdecimal() and 0 < int(start) <= blocks):
            raise BadInput(f"the strength {change!r:.30} names no block from 1 to {blocks}; write 7:0.6")
        strengths[int(start) - 1 :] = [read_strength(strength)] * (blocks - int(start) + 1)
    return tuple(strengths)


@dataclass(frozen=True, slots=True, eq=False)
class InputClip:
    """A clip to restyle: its normalised latents `b c t h w`, and the strength of each block.

    `start`: the latent frame of the video at which it begins.
    """

    latents: Tensor
    start: int
    strengths: tuple[Strength, ...]

    def at(self, span: Span) -> Restyle:
        """Return its part at a block."""
        first = span.start - self.start
        strength = self.strengths[first // span.frames]
        return Restyle(strength.skip, strength.share, self.latents[:, :, first : first + span.frames])


def check_strengths(strengths: Sequence[Strength], schedules: Sequence[Sequence[float]]) -> None:
    """Raise `BadInput` unless models with these timesteps can skip as many steps as the strengths do.

    All models must continue from the same noise level, so their schedules must be equal up to there.
    """
    skip = max((strength.skip for strength in strengths), default=0)
    most = min(len(timesteps) for timesteps in schedules) - 1
    while most and len({tuple(timesteps[: most + 1]) for timesteps in schedules}) > 1:
        most -= 1
    if skip > most:
        words = [word for word, steps in WORDS.items() if steps <= most]
        ways = f"{', '.join(words)} or a number" if words else "a number"
        raise BadInput(f"the models' schedules share {most + 1} steps, too few to leave out {skip}; give {ways}")
