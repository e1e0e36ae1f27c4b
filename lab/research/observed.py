"""See every call of an engine's parts, or answer it.

The study remembers calls, and the benchmark gauges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import BlockGenerator, Engine, Scorer, VideoCodec, WrappedGenerator
from sdvg_core.engine.types import Generated

Call = Callable[[str, tuple[Any, ...], Callable[..., Any]], Any]
"""Gets a part's name (draft, target, decode, score), the arguments and the work; returns its result."""


def observed(engine: Engine, call: Call) -> Engine:
    """Return the engine with every call going through `call`."""
    return replace(
        engine,
        drafter=_Generator(engine.drafter, partial(call, "draft")) if engine.drafter else None,
        target=_Generator(engine.target, partial(call, "target")) if engine.target else None,
        codec=_Codec(engine.codec, partial(call, "decode")),
        scorer=_Scorer(engine.scorer, partial(call, "score")) if engine.scorer else None,
    )


class _Generator(WrappedGenerator):
    def __init__(self, inner: BlockGenerator, call: Callable[..., Generated]) -> None:
        super().__init__(inner)
        self._call = call

    def generate(self, call: BlockCall) -> Generated:
        return self._call((call,), self.inner.generate)


class _Codec:
    def __init__(self, inner: VideoCodec, call: Callable[..., tuple[Tensor, Any]]) -> None:
        self._inner = inner
        self._call = call
        self.encode = inner.encode
        self.latent_channels = inner.latent_channels
        self.temporal_stride = inner.temporal_stride
        self.spatial_stride = inner.spatial_stride

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self._call((latents, state), self._inner.decode)


class _Scorer:
    def __init__(self, inner: Scorer, call: Callable[..., Tensor]) -> None:
        self._inner = inner
        self._call = call
        self.describe = inner.describe

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return self._call((frames, prompt), self._inner.score)
