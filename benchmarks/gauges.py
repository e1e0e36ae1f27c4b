"""How much memory is in use: on a device as a whole, and for each part with a gauge around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sdvg_core.engine.history import History
from sdvg_core.engine.parts import Engine, NoiseSource, Scorer, VideoCodec
from sdvg_core.engine.types import Condition, Generated, Span
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator


class Gauge(Protocol):
    """Measures the peak memory since it was last cleared."""

    def clear(self) -> None:
        """Start over."""
        ...

    def peak(self) -> int | None:
        """Return the peak in bytes, or None if it is unknown."""
        ...


class NoGauge:
    """A CPU, whose memory torch does not count."""

    def clear(self) -> None:
        """Do nothing."""

    def peak(self) -> int | None:
        """Return None."""
        return None


class CudaGauge:
    """The memory that torch's allocator has handed out on CUDA devices."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = tuple(devices)

    def clear(self) -> None:
        """Start over."""
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> int | None:
        """Return the sum over devices of the most bytes allocated at once."""
        return sum(int(torch.cuda.max_memory_allocated(device)) for device in self._devices)


def gauge_of(*devices: torch.device) -> Gauge:
    """Return a gauge for the CUDA devices among these."""
    counted = [device for device in dict.fromkeys(devices) if device.type == "cuda"]
    return CudaGauge(counted) if counted else NoGauge()


def metered(engine: Engine, gauge: Gauge, peaks: dict[str, int]) -> Engine:
    """Return the engine with a gauge around each part, which writes the part's peak into `peaks`."""

    def read(part: str) -> None:
        peak = gauge.peak()
        if peak is not None:
            peaks[part] = max(peak, peaks.get(part, 0))

    meter = _Meter(gauge, read)
    return replace(
        engine,
        drafter=_MeteredGenerator(engine.drafter, "draft", meter),
        target=_MeteredGenerator(engine.target, "target", meter),
        codec=_MeteredCodec(engine.codec, "deliver" if engine.judge else "decode", meter),
        judge=_MeteredCodec(engine.judge, "decode", meter) if engine.judge else None,
        scorer=_MeteredScorer(engine.scorer, meter) if engine.scorer else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Meter:
    gauge: Gauge
    read: Callable[[str], None]

    def __call__(self, part: str, work: Callable[[], Any]) -> Any:
        self.gauge.clear()
        result = work()
        self.read(part)
        return result


class _MeteredGenerator(WrappedGenerator):
    def __init__(self, inner: Any, part: str, meter: _Meter) -> None:
        super().__init__(inner)
        self._part, self._meter = part, meter

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        made: Generated = self._meter(
            self._part, lambda: self.inner.generate(history, span, noise, condition, given, stop)
        )
        return made


class _MeteredCodec(WrappedCodec):
    def __init__(self, inner: VideoCodec, part: str, meter: _Meter) -> None:
        super().__init__(inner)
        self._part, self._meter = part, meter

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        decoded: tuple[Tensor, Any] = self._meter(self._part, lambda: self.inner.decode(latents, state))
        return decoded


class _MeteredScorer:
    def __init__(self, inner: Scorer, meter: _Meter) -> None:
        self._inner, self._meter = inner, meter

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        scores: Tensor = self._meter("score", lambda: self._inner.score(frames, prompt))
        return scores

    def describe(self) -> Any:
        return self._inner.describe()
