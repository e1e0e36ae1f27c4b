"""Base classes for wrappers that change one thing about a part of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .history import History
from .parts import BlockGenerator, NoiseSource, VideoCodec
from .types import Condition, Generated, Span


class WrappedGenerator:
    """A `BlockGenerator` that passes everything on to `inner`, unless a subclass overrides it."""

    def __init__(self, inner: BlockGenerator) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """What reports and errors call this model."""
        return self.inner.name

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""
        return self.inner.block_frames

    @property
    def latent_channels(self) -> int:
        """Channels of its latents."""
        return self.inner.latent_channels

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of every denoising step."""
        return self.inner.timesteps

    @property
    def first_timesteps(self) -> tuple[float, ...]:
        """The same for the clip's first block."""
        return self.inner.first_timesteps

    @property
    def anchor_horizon(self) -> int:
        """How many of the newest latent frames must have their last pixel frame kept."""
        return self.inner.anchor_horizon

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        """Generate the block at `span`, as `inner` does."""
        return self.inner.generate(history, span, noise, condition, given, stop)


class WrappedCodec:
    """A `VideoCodec` that passes everything on to `inner`, unless a subclass overrides it."""

    def __init__(self, inner: VideoCodec) -> None:
        self.inner = inner
        self.latent_channels = inner.latent_channels
        self.temporal_stride = inner.temporal_stride
        self.spatial_stride = inner.spatial_stride

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode `b c t h w` into `b f c h w`, as `inner` does."""
        return self.inner.decode(latents, state)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode `b f c h w` into `b c t h w`, as `inner` does."""
        return self.inner.encode(frames)
