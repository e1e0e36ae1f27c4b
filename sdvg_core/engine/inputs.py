"""The inputs of blocks: noise, a clip to continue or restyle, controls; and the call to a model.

Noise is keyed, not drawn from a generator in order, so that it does not depend on earlier drafts and rejections. A
block sees a restyled clip and controls only at its own frames, so drafting, commit and re-use need no special case.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..errors import BadInput
from ..settings.fields import check_fields, setting
from ..settings.request import MOST_CONTROL_STRENGTH, MOST_SEED, Strength
from .types import Condition, History, Span, check_clip

CONTROL_CHANNELS = 96
"""Channels of a control's context: 16 latent channels twice, and 64 of the mask."""


class NoiseSource(Protocol):
    """Noise as a pure function of its key; slot 0 is the initial noise, slot i the re-noise after step i."""

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return standard normal noise `b c t h w`, float32 on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNoise:
    """Standard normal noise keyed by (seed, block, slot), and by the take if it is not the first.

    `shot`: key of the shot, such as `#k3f`; empty for one without. It is the same on every device, for every clip
    length and wherever a shot stands in its film. Drafter and target share one source, so both use the same initial
    noise and re-noise.
    """

    seed: int = setting(least=0, most=MOST_SEED)
    channels: int
    height: int
    width: int
    shot: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return the noise of one slot of one block: `b c t h w`, float32, CPU."""
        # Neither take 1 nor an empty shot is part of the key, so that a seed without them needs none.
        take = (span.take,) if span.take > 1 else ()
        shot = (self.shot,) if self.shot else ()
        generator = torch.Generator().manual_seed(generator_seed(self.seed, *shot, span.index, slot, *take))
        return torch.randn(self.shape(span), generator=generator, dtype=torch.float32)

    @property
    def key(self) -> tuple[int | str, ...]:
        """All that the noise of a block depends on, besides the block; the shot's key if it has one."""
        shot = (self.shot,) if self.shot else ()
        return (self.seed, self.channels, self.height, self.width, *shot)

    def shape(self, span: Span) -> tuple[int, ...]:
        """Return the shape of a block's noise and latents, `b c t h w`."""
        return 1, self.channels, span.frames, self.height, self.width


def generator_seed(*parts: int | str) -> int:
    """Hash whole numbers, and texts that begin with #, into a generator seed of 63 bits."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# --- restyling: a block begins from the clip's latents with noise added


@dataclass(frozen=True, slots=True, eq=False)
class Restyle(Strength):
    """The restyling of one block. `latents`: of the input, `b c t h w`; None for none."""

    latents: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class InputClip:
    """A clip to restyle. `latents`: normalised, `b c t h w`. `start`: latent frame of the history where it begins.

    `strengths`: of each block.
    """

    latents: Tensor
    start: int
    strengths: tuple[Strength, ...]

    def at(self, span: Span) -> Restyle:
        """Return the restyling of the block at `span`."""
        first = span.start - self.start
        strength = self.strengths[first // span.frames]
        return Restyle(strength.skip, strength.share, self.latents[:, :, first : first + span.frames])


# --- controls: depth, scribbles, flow or kept regions


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """The control of one block. `context`: input of the control module, `b 96 t h w`.

    Channels: latents of the kept regions, latents of the regions to generate, and 8 x 8 mask values per latent.
    """

    context: Tensor
    strength: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ControlClip(Control):
    """The control of a whole video, `b 96 t h w`. `start`: latent frame of the history where it begins.

    Raises `BadInput` unless the strength is a number from 0 to 10.
    """

    start: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and 0 <= self.strength <= MOST_CONTROL_STRENGTH):
            fault = f"the control's strength is {self.strength:g}"
            raise BadInput(f"{fault}; give a number from 0 to 1, or a little above")

    def check(self, stop: int, rows: int, columns: int) -> None:
        """Raise `BadInput` unless it has this size and reaches the latent frame `stop` of the history."""
        check_clip(self.context, (CONTROL_CHANNELS, rows, columns), "the control", "make it in the video's size")
        frames = self.context.shape[2]
        least = stop - self.start
        if frames < least:
            missing = f"{frames} latent frames, and the video has {least}"
            raise BadInput(f"the control has {missing}; give one as long as the video, or ask for fewer blocks")

    def at(self, span: Span) -> Control:
        """Return the control of the block at `span`."""
        first = span.start - self.start
        return Control(self.context[:, :, first : first + span.frames], self.strength)


# --- the inputs of a run, and a call to a model


@dataclass(frozen=True, slots=True, eq=False)
class StartClip:
    """A clip to continue, or a start image. `latents`: normalised, `b c t h w`.

    `pixels`: `1 f c h w` in [0, 1], shown in the video in place of the first `replaced` latent frames; None to show
    the decoded latents.
    """

    latents: Tensor
    pixels: Tensor | None = None
    replaced: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class BlockCall:
    """A call to a model for the block at `span`, which continues `history`.

    `handed_over`: clean predictions of the first steps by another model; denoising continues after them.
    `stop`: number of steps after which to stop, so that another model can continue; None for the whole block.
    `left_out`: number of steps to leave out: the next ones after those replaced, or, if none is, after the first.
    The others keep their noise level and their number, by which noise is drawn.
    `controls`: in the order in which they are added.
    """

    history: History
    span: Span
    noise: NoiseSource
    condition: Condition
    handed_over: Sequence[Tensor] = ()
    stop: int | None = None
    left_out: int = 0
    restyle: Restyle = field(default_factory=Restyle)
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BlockInputs:
    """The inputs of all blocks of a run.

    `condition_of`: condition by block index, the same object for the same prompt. `start`: the clip to continue, or
    None. `restyle`: the clip to restyle, or None.
    """

    noise: KeyedNoise
    condition_of: Callable[[int], Condition]
    start: StartClip | None = None
    restyle: InputClip | None = None
    controls: tuple[ControlClip, ...] = ()

    def call(self, history: History, span: Span, stop: int | None = None) -> BlockCall:
        """Return the call for the block at `span`, which follows `history`. Controls of strength 0 are left out."""
        return BlockCall(
            history,
            span,
            self.noise,
            self.condition_of(span.index),
            stop=stop,
            restyle=self.restyle.at(span) if self.restyle else Restyle(),
            controls=tuple(clip.at(span) for clip in self.controls if clip.strength),
        )
