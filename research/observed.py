"""See every call of an engine's parts, or answer it: the study remembers calls, and the benchmark gauges them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from sdvg_core.engine.parts import BlockGenerator, Engine, Scorer, VideoCodec
from sdvg_core.engine.types import Generated
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator

Call = Callable[[str, tuple[Any, ...], Callable[..., Any]], Any]
"""Gets a part's name (draft, target, decode, deliver, score), the arguments and the work; returns its result."""


def observed(engine: Engine, call: Call) -> Engine:
    """Return the engine with every call going through `call`. With a judge, the codec's are `deliver`."""
    return replace(
        engine,
        drafter=_Generator(engine.drafter, partial(call, "draft")),
        target=_Generator(engine.target, partial(call, "target")),
        codec=_Codec(engine.codec, partial(call, "deliver" if engine.judge else "decode")),
        judge=_Codec(engine.judge, partial(call, "decode")) if engine.judge else None,
        scorer=_Scorer(engine.scorer, partial(call, "score")) if engine.scorer else None,
    )


class _Generator(WrappedGenerator):
    def __init__(self, inner: BlockGenerator, call: Callable[..., Generated]) -> None:
        super().__init__(inner)
        self._call = call

    def generate(self, *arguments: Any, **named: Any) -> Generated:
        return self._call(arguments, partial(self.inner.generate, **named))


class _Codec(WrappedCodec):
    def __init__(self, inner: VideoCodec, call: Callable[..., tuple[Tensor, Any]]) -> None:
        super().__init__(inner)
        self._call = call

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self._call((latents, state), self.inner.decode)


class _Scorer:
    def __init__(self, inner: Scorer, call: Callable[..., Tensor]) -> None:
        self._inner, self._call, self.describe = inner, call, inner.describe

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        return self._call((frames, prompt), self._inner.score)
