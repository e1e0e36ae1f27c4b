"""How forward passes are carried out: as written, with compiled stages, or recorded once and played back.

A recording plays its kernels on the very memory it was made with. So its inputs are copied to fixed places, a cache
of one size is kept and used again, and what comes out is a copy that the next play leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..devices.compiling import INDUCTOR, Backend, CompileMode, compiled
from .attention import Ops
from .cache import KVCache, Place
from .forward import PLAIN, Stages, TextKV

Pass = Callable[..., Tensor | None]
"""`denoise_pass` or `context_pass`."""
Record = Callable[[Callable[[], Tensor | None]], Callable[[], Tensor | None]]
"""Takes work on fixed memory; returns what plays it, each time on the same memory, the result's included."""


class Passes:
    """Carries passes out one operation after the other. `stages`: of every layer; None as written."""

    def __init__(self, stages: Stages | None = None) -> None:
        self._stages = stages

    def run(
        self,
        work: Pass,
        tree: Any,
        given: tuple[Tensor | float, ...],
        text: TextKV,
        cache: KVCache,
        place: Place,
        rope: Any,
        ops: Ops,
    ) -> Any:
        """Return what `work` makes of what it is `given`: latents `b c t h w`, and a timestep if it takes one."""
        return work(tree, *given, text, cache, place, rope, ops, self._stages)

    def cache(self, size: Hashable, make: Callable[[], KVCache]) -> KVCache:
        """Return a cache of that size with nothing in it that anyone still needs."""
        return make()


class RecordedPasses(Passes):
    """Records a pass where it first stands, and plays it there from then on. For one generator at a time.

    The keys and values of every size stay in memory between blocks. `record`: `CudaRecorder`, or a test's.
    """

    def __init__(self, record: Record, stages: Stages | None = None) -> None:
        super().__init__(stages)
        self._record = record
        self._caches: dict[Hashable, KVCache] = {}
        self._recordings: dict[Hashable, _Recording] = {}
        self._texts: dict[Hashable, _Text] = {}

    def run(
        self,
        work: Pass,
        tree: Any,
        given: tuple[Tensor | float, ...],
        text: TextKV,
        cache: KVCache,
        place: Place,
        rope: Any,
        ops: Ops,
    ) -> Any:
        """Play the pass, recording it first if it never stood there."""
        x = given[0]
        assert isinstance(x, Tensor), "latents come first"
        fixed = self._text(text)
        # The position is in the rotary table; all else of a place is in the recording.
        key = (work, cache, fixed, place.slots, place.visible, x.shape)
        changing = (*given, *rope)
        if key not in self._recordings:
            inputs = tuple(_fixed(value, x.device) for value in changing)
            given, rope = inputs[: len(given)], inputs[len(given) :]
            play = self._record(lambda: work(tree, *given, fixed.kv, cache, place, rope, ops, self._stages))
            self._recordings[key] = _Recording(inputs, play)
        return self._recordings[key](changing)

    def cache(self, size: Hashable, make: Callable[[], KVCache]) -> KVCache:
        """Return the one cache of that size."""
        if size not in self._caches:
            self._caches[size] = make()
        return self._caches[size]

    def _text(self, text: TextKV) -> _Text:
        shapes = tuple(k.shape for k, _ in text)
        if shapes not in self._texts:
            self._texts[shapes] = _Text(text)
        self._texts[shapes].hold(text)
        return self._texts[shapes]


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    inputs: tuple[Tensor, ...]
    play: Callable[[], Tensor | None]

    def __call__(self, given: tuple[Any, ...]) -> Tensor | None:
        for place, value in zip(self.inputs, given, strict=True):
            _put(place, value)
        made = self.play()
        return None if made is None else made.clone()


class _Text:
    """A prompt's keys and values at a fixed place, filled again only when the prompt changes."""

    def __init__(self, text: TextKV) -> None:
        self.kv: TextKV = tuple((torch.empty_like(k), torch.empty_like(v)) for k, v in text)
        self._held: TextKV | None = None

    def hold(self, text: TextKV) -> None:
        """Have the keys and values of `text` there."""
        if self._held is text:
            return
        for places, values in zip(self.kv, text, strict=True):
            for place, value in zip(places, values, strict=True):
                place.copy_(value)
        self._held = text


def _fixed(value: Tensor | float, device: torch.device) -> Tensor:
    """Return a place of its own for such a value; a number's is double precision."""
    if isinstance(value, Tensor):
        return value.clone()
    return torch.full((), value, dtype=torch.float64, device=device)


def _put(place: Tensor, value: Tensor | float) -> None:
    if isinstance(value, Tensor):
        place.copy_(value)
    else:
        place.fill_(value)


class CudaRecorder:
    """Records work on a CUDA device as a graph. Its graphs share one pool of memory, for they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        """Run the work once, so that every library has set itself up; then record it."""
        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                work()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Another thread may be decoding; what it asks of the device is no part of this.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = work()

        def play() -> Tensor | None:
            graph.replay()
            return result

        return play


def passes_for(mode: CompileMode, device: torch.device) -> Passes:
    """Return how the passes of one generator are carried out in a mode that `check_compile` let through."""
    if mode == "off":
        return Passes()
    stages = compiled_stages()
    return RecordedPasses(CudaRecorder(device), stages) if mode == "graphs" else Passes(stages)


def compiled_stages(backend: Backend = INDUCTOR) -> Stages:
    """Return the stages of a layer, compiled; all layers of a model, and every pass, share what was compiled."""
    return Stages(
        before=compiled(PLAIN.before, backend),
        between=compiled(PLAIN.between, backend),
        after=compiled(PLAIN.after, backend),
    )
