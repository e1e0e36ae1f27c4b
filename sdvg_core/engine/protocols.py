"""The protocols of a run's parts: models, codec, scorer, router.

Latents are `b c t h w` in the model's normalised space, pixel frames `b f c h w` in [0, 1]. Always b = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from .inputs import BlockCall
from .types import Generated


class ModelShape(Protocol):
    """What is known about a model before its weights are read."""

    @property
    def name(self) -> str:
        """The model's name in reports and errors."""

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""

    @property
    def latent_channels(self) -> int:
        """Latent channels."""

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of each denoising step."""

    @property
    def first_timesteps(self) -> tuple[float, ...]:
        """The same for the clip's first block; empty if its frames do not share one list."""

    @property
    def anchor_horizon(self) -> int:
        """For how many of the newest latent frames the model needs the last pixel frame; 0 for none."""


class BlockGenerator(ModelShape, Protocol):
    """A causal video model. `generate` is a pure function; it keeps nothing between calls but a cache."""

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block."""


def steps_made(model: ModelShape) -> int:
    """Return how many denoising steps a model makes of a block when it drafts.

    A model that stops earlier than its timesteps end says so by an attribute `draft_steps`.
    """
    steps = len(model.timesteps)
    return min(getattr(model, "draft_steps", None) or steps, steps)


class WrappedGenerator:
    """A `BlockGenerator` with the shape of `inner`; subclasses add `generate`."""

    def __init__(self, inner: BlockGenerator) -> None:
        self.inner = inner
        self.name = inner.name
        self.block_frames = inner.block_frames
        self.latent_channels = inner.latent_channels
        self.timesteps = inner.timesteps
        self.first_timesteps = inner.first_timesteps
        self.anchor_horizon = inner.anchor_horizon
        self.draft_steps: int | None = getattr(inner, "draft_steps", None)


class VideoCodec(Protocol):
    """Turns latents into pixels and back. The decode state is an opaque immutable value; None starts a clip."""

    latent_channels: int
    temporal_stride: int
    spatial_stride: int

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode `b c t h w`. Return pixel frames `b f c h w` in [0, 1] and the state after them."""

    def encode(self, frames: Tensor) -> Tensor:
        """Encode a clip of 1 + stride * k pixel frames, `b f c h w` in [0, 1], into latents `b c t h w`."""


@runtime_checkable
class Scorer(Protocol):
    """Scores pixel frames one by one."""

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per pixel frame of `b f c h w`: `(f,)`, float32 on the CPU, higher is better."""

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report; `notes` lists warnings about the scores."""


@runtime_checkable
class Router(Protocol):
    """Decides who makes a block: a pure function, called again when a stopped run is resumed."""

    @property
    def needs_scorer(self) -> bool:
        """True if drafts are scored before it decides."""

    def keep(self, index: int, score: float | None) -> bool:
        """Return whether the draft of block `index` of the route, from 0, is kept.

        The route begins with the clip, or with the first new block after a clip given as pixels.
        `score`: that of its worst frame, in the scorer's units; None if drafts are not scored.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """The parts of a run; they do not change during it.

    A model or scorer is None if no block will ask for it; there is at least one model.
    """

    drafter: BlockGenerator | None
    target: BlockGenerator | None
    codec: VideoCodec
    scorer: Scorer | None = None

    @property
    def models(self) -> tuple[BlockGenerator, ...]:
        """The models that are there, the drafter first."""
        return tuple(model for model in (self.drafter, self.target) if model is not None)

    @property
    def horizon(self) -> int:
        """For how many latent frames a history must keep pixels, given these models."""
        return max(model.anchor_horizon for model in self.models)
