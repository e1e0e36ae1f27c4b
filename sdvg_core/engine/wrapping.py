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
        self.inner, self.name = inner, inner.name
        self.block_frames, self.latent_channels = inner.block_frames, inner.latent_channels
        self.timesteps, self.first_timesteps = inner.timesteps, inner.first_timesteps
        self.anchor_horizon = inner.anchor_horizon

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
