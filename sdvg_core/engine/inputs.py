"""What a run's blocks are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .control import ControlClip
from .history import History
from .noise import KeyedNoise
from .protocols import BlockCall
from .restyle import InputClip, Restyle
from .types import Condition, Span


@dataclass(frozen=True, slots=True, eq=False)
class StartClip:
    """A clip to continue, or a start image: normalised latents `b c t h w`.

    `pixels`: its own, `1 f c h w` in [0, 1], which the video shows; None to show what the latents decode to.
    """

    latents: Tensor
    pixels: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockInputs:
    """Everything that a run's blocks are made from.

    `condition_of`: what a block should show, by its number. `start`: the clip that new blocks continue, or None.
    `restyle`: the one they restyle, or None. `controls`: the clips that they obey.
    """

    noise: KeyedNoise
    condition_of: Callable[[int], Condition]
    start: StartClip | None = None
    restyle: InputClip | None = None
    controls: tuple[ControlClip, ...] = ()

    def call(self, history: History, span: Span, stop: int | None = None) -> BlockCall:
        """Return the call that makes the block at `span`, which follows `history`. Controls of strength 0 go."""
        return BlockCall(
            history,
            span,
            self.noise,
            self.condition_of(span.index),
            stop=stop,
            restyle=self.restyle.at(span) if self.restyle else Restyle(),
            controls=tuple(clip.at(span) for clip in self.controls if clip.strength),
        )
