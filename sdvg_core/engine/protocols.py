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
    """A model as known from its header, before weights are read."""

    @property
    def name(self) -> str:
        """The model's name in reports and errors."""

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""

    @property
    def latent_channels(self) -> int:
        """Number of latent channels."""

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of each denoising step."""

    @property
    def first_timesteps(self) -> tuple[float, ...]:
        """The timesteps of the clip's first block; empty if its frames do not share one list."""

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose last pixel frame the model needs; 0 for none."""


class BlockGenerator(ModelShape, Protocol):
    """A causal video model. `generate` must be a pure function; caches between calls are allowed.

    A drafter heeds `stop` of its calls, a target `handed_over` and `left_out`, where a route has them.
    """

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block."""


def steps_made(model: ModelShape) -> int:
    """Return the number of denoising steps of a draft: the attribute `draft_steps` if it is set, else all."""
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
    """Decides who makes a block. Must be a pure function: it is called again when a run is resumed."""

    @property
    def needs_scorer(self) -> bool:
        """True if it decides by scores."""

    def keep(self, index: int, score: float | None) -> bool:
        """Return True to keep the draft of block `index` of the route, from 0.

        The route begins with the clip, or with the first new block after a clip given as pixels.
        `score`: of its worst frame, in the scorer's units; None if drafts are not scored.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """The parts of a run. A model or scorer is None if no block needs it; there is at least one model."""

    drafter: BlockGenerator | None
    target: BlockGenerator | None
    codec: VideoCodec
    scorer: Scorer | None = None

    @property
    def models(self) -> tuple[BlockGenerator, ...]:
        """The models, the drafter first."""
        return tuple(model for model in (self.drafter, self.target) if model is not None)

    @property
    def target_steps(self) -> int:
        """Number of the target's denoising steps; 0 without a target."""
        return len(self.target.timesteps) if self.target else 0

    @property
    def horizon(self) -> int:
        """Number of latent frames for which a history must keep anchors."""
        return max(model.anchor_horizon for model in self.models)
