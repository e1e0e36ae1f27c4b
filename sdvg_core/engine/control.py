"""Control: clips of depth, scribbles, flow or kept regions that new blocks obey, each with a strength.

A block sees a control only at its own frames, so drafting, commit and re-use work as without one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadInput
from .types import Span, check_clip

if TYPE_CHECKING:
    from torch import Tensor

MOST_STRENGTH = 10.0
CHANNELS = 96
"""Channels of a control's context: twice the 16 latent channels, and 64 of the mask."""


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A block's control: `context`, as the control module takes it, `b 96 t h w`, and its strength.

    Channels: the latents of what is kept, those of what is to be made, and 8 x 8 mask values per latent.
    """

    context: Tensor
    strength: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ControlClip(Control):
    """A control for a whole video, `b 96 t h w`. `start`: the latent frame of the history at which it begins.

    Raises `BadInput` unless the strength is a number from 0 to 10.
    """

    start: int = 0

    def __post_init__(self) -> None:
        check_control_strength(self.strength)

    def check(self, stop: int, rows: int, columns: int) -> None:
        """Raise `BadInput` unless it is of this size and reaches to the latent frame `stop` of the history."""
        check_clip(self.context, (CHANNELS, rows, columns), "the control", "make it in the video's size")
        frames = self.context.shape[2]
        least = stop - self.start
        if frames < least:
            missing = f"{frames} latent frames, and the video has {least}"
            raise BadInput(f"the control has {missing}; give one as long as the video, or ask for fewer blocks")

    def at(self, span: Span) -> Control:
        """Return its part at a block."""
        first = span.start - self.start
        return Control(self.context[:, :, first : first + span.frames], self.strength)


def check_control_strength(strength: float) -> None:
    """Raise `BadInput` unless it is a number from 0 to 10."""
    if not (math.isfinite(strength) and 0 <= strength <= MOST_STRENGTH):
        raise BadInput(f"the control's strength is {strength:g}; give a number from 0 to 1, or a little above")
