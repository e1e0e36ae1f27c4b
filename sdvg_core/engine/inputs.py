"""What blocks are made from: noise, a clip to go on from or to restyle, controls; and the call that a model gets.

Noise is a function of its key, so that no draw depends on what was drawn or rejected before. A block sees restyled
clips and controls only at its own frames, so drafting, commit and re-use work as without them. torch is imported
only to draw: the command line imports this file for its words.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..errors import BadInput
from ..settings import check_fields, setting
from .types import Condition, Span, check_clip

if TYPE_CHECKING:
    from torch import Tensor

    from .history import History

MOST_SEED = 2**64 - 1
STRENGTHS = {"strong": 1, "medium": 2, "light": 3}
"""How many steps each strength skips: on four steps, 6, 17 and 37 % of the input are left under the noise."""
USUAL_STRENGTH = "medium"
LEAST_SHARE = 0.05
MOST_CONTROL_STRENGTH = 10.0
CONTROL_CHANNELS = 96
"""Channels of a control's context: twice the 16 latent channels, and 64 of the mask."""


class NoiseSource(Protocol):
    """Noise as a pure function of its key; slot 0 is the initial noise, slot i the re-noise after step i."""

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return standard normal noise `b c t h w`, float32 on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNoise:
    """Standard normal noise keyed by (seed, block, slot), and by the take if it is not the first.

    The same on every device and for every clip length.

    Slot 0 is a block's initial noise, slot i the re-noise after its i-th denoising step. Drafter and target share
    one source, so they start from the same tensors and are re-noised with the same tensors.
    """

    seed: int = setting(least=0, most=MOST_SEED)
    channels: int
    height: int
    width: int

    def __post_init__(self) -> None:
        check_fields(self)

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return the noise of one slot of one block: `b c t h w`, float32, CPU."""
        import torch

        # Take 1 adds nothing to the key, so a seed keeps the videos it had before there were takes.
        take = (span.take,) if span.take > 1 else ()
        generator = torch.Generator().manual_seed(generator_seed(self.seed, span.index, slot, *take))
        return torch.randn(self.shape(span), generator=generator, dtype=torch.float32)

    def shape(self, span: Span) -> tuple[int, ...]:
        """Return the shape of a block's noise and latents, `b c t h w`."""
        return 1, self.channels, span.frames, self.height, self.width


def generator_seed(*parts: int) -> int:
    """Hash whole numbers into a generator seed of 63 bits."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# --- a clip to restyle: a block begins from its latents with noise added, not from noise alone. A word skips the
# first steps of the schedule, whose estimates the clip replaces; a number lowers the noise of all steps.


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
    """Return a strength from one of `STRENGTHS`, or a number up to 1. Raises `BadInput` for anything else."""
    if text in STRENGTHS:
        return Strength(skip=STRENGTHS[text])
    try:
        share = float(text)
    except (TypeError, ValueError):
        share = 0.0
    if not LEAST_SHARE <= share <= 1:
        raise BadInput(
            f"{text!r:.40} is not a strength; give {', '.join(STRENGTHS)} or a number from {LEAST_SHARE} to 1"
        )
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
        words = [word for word, steps in STRENGTHS.items() if steps <= most]
        ways = f"{', '.join(words)} or a number" if words else "a number"
        raise BadInput(f"the models' schedules share {most + 1} steps, too few to leave out {skip}; give {ways}")


# --- controls: clips of depth, scribbles, flow or kept regions that blocks obey


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
        if not (math.isfinite(self.strength) and 0 <= self.strength <= MOST_CONTROL_STRENGTH):
            fault = f"the control's strength is {self.strength:g}"
            raise BadInput(f"{fault}; give a number from 0 to 1, or a little above")

    def check(self, stop: int, rows: int, columns: int) -> None:
        """Raise `BadInput` unless it is of this size and reaches to the latent frame `stop` of the history."""
        check_clip(self.context, (CONTROL_CHANNELS, rows, columns), "the control", "make it in the video's size")
        frames = self.context.shape[2]
        least = stop - self.start
        if frames < least:
            missing = f"{frames} latent frames, and the video has {least}"
            raise BadInput(f"the control has {missing}; give one as long as the video, or ask for fewer blocks")

    def at(self, span: Span) -> Control:
        """Return its part at a block."""
        first = span.start - self.start
        return Control(self.context[:, :, first : first + span.frames], self.strength)


# --- a run's inputs, and a call to a model


@dataclass(frozen=True, slots=True, eq=False)
class StartClip:
    """A clip to continue, or a start image: normalised latents `b c t h w`.

    `pixels`: its own, `1 f c h w` in [0, 1], which the video shows; None to show what the latents decode to.
    """

    latents: Tensor
    pixels: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockCall:
    """A call to a model: it makes the block at `span`, continuing `history`.

    `handed_over`: clean estimates of the first steps, from another model; denoising continues after them.
    `stop`: the step to stop before, so that another model can continue; None to make the whole block.
    `restyle`: what the block is made from besides noise. `controls`: in the order in which they are added.
    """

    history: History
    span: Span
    noise: NoiseSource
    condition: Condition
    handed_over: Sequence[Tensor] = ()
    stop: int | None = None
    restyle: Restyle = field(default_factory=Restyle)
    controls: tuple[Control, ...] = ()


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
