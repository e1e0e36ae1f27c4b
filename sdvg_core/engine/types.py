"""The values that travel through the engine, and the contracts of the parts it is given.

Latents are `b c t h w` in the model's normalised space, pixel frames `b f c h w` in [0, 1]. Always b = 1.
Every value is immutable, and so are the tensors inside: nobody writes into a tensor that came out of here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from .history import History


@dataclass(frozen=True, slots=True)
class Span:
    """Where a block lies in the clip: its number, and its first latent frame and their count."""

    index: int
    start: int
    frames: int

    @property
    def stop(self) -> int:
        """The latent frame after the last one."""
        return self.start + self.frames


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What a block is to show. Two conditions are the same only if they are the same object.

    `embedding`: `(1, text_tokens, text_channels)`, zero after the prompt's end; all tokens are attended.
    `text`: the prompt as the user wrote it.
    `gate_text`: what the scorer reads; ImageReward sees only its first 35 tokens.
    """

    embedding: Tensor
    text: str
    gate_text: str


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A committed block: its place, its latents `b c t h w`, and the condition it was made under."""

    span: Span
    latents: Tensor
    condition: Condition

    def same_as(self, other: Block) -> bool:
        """Whether both hold the very same values (identity, so no tensor is ever compared)."""
        return self.latents is other.latents and self.condition is other.condition


@dataclass(frozen=True, slots=True)
class Work:
    """What generating one block took: forward passes, single-frame encodes, seconds spent on context."""

    denoising_passes: int = 0
    context_passes: int = 0
    encodes: int = 0
    context_seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.denoising_passes + other.denoising_passes,
            self.context_passes + other.context_passes,
            self.encodes + other.encodes,
            self.context_seconds + other.context_seconds,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """A block as a generator made it.

    `predictions`: the clean estimate after each denoising step, `b c t h w`; the last one is the block.
    """

    predictions: tuple[Tensor, ...]
    work: Work = field(default_factory=Work)

    @property
    def latents(self) -> Tensor:
        """The block, `b c t h w`."""
        return self.predictions[-1]


class NoiseSource(Protocol):
    """Noise as a pure function of its key; slot 0 is the initial noise, slot i the re-noise after step i."""

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return standard normal noise `b c t h w`, float32 on the CPU."""
        ...


class BlockGenerator(Protocol):
    """A causal video model. `generate` is a pure function; what it keeps between calls is a memo."""

    @property
    def name(self) -> str:
        """What reports and errors call this model."""
        ...

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""
        ...

    @property
    def latent_channels(self) -> int:
        """Channels of its latents."""
        ...

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of every denoising step."""
        ...

    @property
    def anchor_horizon(self) -> int:
        """How many of the newest latent frames must have their last pixel frame kept; 0 if none."""
        ...

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
    ) -> Generated:
        """Make the block at `span` as the continuation of `history`.

        `given`: clean estimates of the first steps made elsewhere; denoising goes on after them (repair).
        """
        ...


class VideoCodec(Protocol):
    """Pixels from latents and back. The decode state is an opaque immutable value; None starts a clip."""

    latent_channels: int
    temporal_stride: int
    spatial_stride: int

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode `b c t h w` into pixel frames `b f c h w` in [0, 1], and the state that follows them."""
        ...

    def encode(self, frames: Tensor) -> Tensor:
        """Encode a clip of 1 + stride * k pixel frames, `b f c h w` in [0, 1], into latents `b c t h w`."""
        ...


class Scorer(Protocol):
    """Judges pixel frames one by one."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per pixel frame of `b f c h w`: `(f,)`, float32 on the CPU, higher is better."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Settings for the report; `notes` lists what a reader of the scores must know."""
        ...
