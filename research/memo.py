"""A cache of model calls, so that work shared by configurations is done once. Every call is a pure function.

A cached call returns the same objects as the first time, so calls on those can be looked up too: equal arguments
are recognised by identity, and tensors are never compared. Each call's seconds are stored with its result, and add
up to the time the run would have taken alone.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from sdvg_core.engine.history import History
from sdvg_core.engine.parts import BlockGenerator, Engine, NoiseSource, Scorer, VideoCodec
from sdvg_core.engine.types import Condition, Generated, Picture, Span
from sdvg_core.engine.wrapping import WrappedCodec, WrappedGenerator

Result = TypeVar("Result")
GIGABYTE = 1 << 30


class Ledger:
    """The calls one run asked for, the calls that were computed, and the seconds the run would have taken alone."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.seconds = 0.0
        self.seconds_made = 0.0

    def time(self) -> float:
        """The run's clock: it advances by each call's own seconds, whether the call was computed or cached."""
        return self.seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    result: Any
    seconds: float
    # The arguments live as long as the entry, so that no other object can get one of their ids.
    arguments: tuple[Any, ...]
    bytes: int


class Memo:
    """Results of pure calls by their arguments. Beyond `limit` bytes, the least recently used are dropped.

    That costs only time: a recomputed result has the same values.
    `clock`: seconds; on an accelerator, one that waits for the device.
    """

    def __init__(self, limit: float = float("inf"), clock: Callable[[], float] = time.perf_counter) -> None:
        self._limit, self._clock = limit, clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._bytes = 0

    def call(
        self, kind: str, arguments: tuple[Any, ...], ledger: Ledger, make: Callable[[], Result], *values: Hashable
    ) -> Result:
        """Return the result of `make`, computed now or earlier for the same call.

        A call is identified by its `kind`, the identity of its `arguments`, and its `values`.
        """
        key = (kind, *values, *map(id, arguments))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._make(arguments, make)
            self._remember(key, entry)
            ledger.made[kind] += 1
            ledger.seconds_made += entry.seconds
        else:
            self._entries.move_to_end(key)
        ledger.asked[kind] += 1
        ledger.seconds += entry.seconds
        result: Result = entry.result
        return result

    def _make(self, arguments: tuple[Any, ...], make: Callable[[], Any]) -> _Entry:
        began = self._clock()
        result = make()
        return _Entry(result, self._clock() - began, arguments, _bytes_of((result, *arguments)))

    def _remember(self, key: Hashable, entry: _Entry) -> None:
        self._entries[key] = entry
        self._bytes += entry.bytes
        while self._bytes > self._limit:
            _, forgotten = self._entries.popitem(last=False)
            self._bytes -= forgotten.bytes


def _bytes_of(values: Sequence[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, tuple | list):
            total += _bytes_of(value)
    return total


class Sharing:
    """An engine with cached calls, for the runs of one prompt and seed.

    `limit`: bytes of decoded frames and decoder states to cache; latents are small and all cached. 0: no cache.
    """

    def __init__(
        self,
        engine: Engine,
        limit: float = GIGABYTE,
        clock: Callable[[], float] = time.perf_counter,
        targets: Mapping[str, BlockGenerator] | None = None,
    ) -> None:
        self._engine, self._targets = engine, targets or {}
        self._latents, self._pixels = Memo(float("inf") if limit else 0, clock), Memo(limit, clock)

    def engine(self, ledger: Ledger, target_schedule: str = "") -> Engine:
        """Return the engine for one run; its calls are counted in `ledger`.

        `target_schedule`: of the target's blocks after the clip's first one; its own if empty.
        """
        scorer = self._engine.scorer
        target: BlockGenerator = _SharedGenerator(self._engine.target, "target", self._latents, ledger)
        if target_schedule:
            few = self._targets[target_schedule]
            target = _FirstWhole(target, _SharedGenerator(few, "target", self._latents, ledger, target_schedule))
        return Engine(
            drafter=_SharedGenerator(self._engine.drafter, "draft", self._latents, ledger),
            target=target,
            codec=_SharedCodec(self._engine.codec, self._pixels, ledger),
            scorer=_SharedScorer(scorer, self._pixels, ledger) if scorer else None,
            judge=_SharedCodec(self._engine.judge, self._pixels, ledger) if self._engine.judge else None,
        )


class _SharedGenerator(WrappedGenerator):
    """A generator that looks up its blocks by the committed blocks before them."""

    def __init__(self, inner: BlockGenerator, kind: str, memo: Memo, ledger: Ledger, schedule: str = "") -> None:
        super().__init__(inner)
        self._kind, self._memo, self._ledger, self._schedule = kind, memo, ledger, schedule

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        """Generate the block, or return the cached one."""
        # The pixels kept for context follow from the latents, so the blocks alone identify a history.
        before = [part for block in history.blocks for part in (block.latents, block.condition)]
        return self._memo.call(
            self._kind,
            (noise, condition, *before, *given),
            self._ledger,
            lambda: self.inner.generate(_unseen(history), span, noise, condition, given, stop),
            span,
            len(given),
            stop,
            self._schedule,
        )


class _FirstWhole(WrappedGenerator):
    """A target that makes the clip's first block with all its steps, and the others with another schedule."""

    def __init__(self, whole: BlockGenerator, few: BlockGenerator) -> None:
        super().__init__(few)
        self._whole = whole

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
        stop: int | None = None,
    ) -> Generated:
        """Generate the block at `span`."""
        model = self.inner if span.index else self._whole
        return model.generate(history, span, noise, condition, given, stop)


def _unseen(history: History) -> History:
    """Return the history with its context pixels as new objects, which no encoder can have encoded before.

    So a call's seconds do not depend on which run made it first. A remade block pays once more than it would alone
    to encode its context's first frame, which drafter and target otherwise share.
    """
    return replace(history, anchors=tuple(partial(_as_new, anchor) for anchor in history.anchors))


def _as_new(anchor: Picture) -> Tensor:
    shown = anchor if isinstance(anchor, Tensor) else anchor()
    return shown.view_as(shown)


class _SharedCodec(WrappedCodec):
    """A codec that looks up decoded blocks by the latents and the decoder's state before them."""

    def __init__(self, inner: VideoCodec, memo: Memo, ledger: Ledger) -> None:
        super().__init__(inner)
        self._memo, self._ledger = memo, ledger

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Decode the block, or return the cached frames."""
        return self._memo.call("decode", (latents, state), self._ledger, lambda: self.inner.decode(latents, state))


class _SharedScorer:
    """A scorer that looks up scores by the frames themselves."""

    def __init__(self, inner: Scorer, memo: Memo, ledger: Ledger) -> None:
        self._inner, self._memo, self._ledger = inner, memo, ledger

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Score the frames, or return the cached scores."""
        return self._memo.call("score", (frames,), self._ledger, lambda: self._inner.score(frames, prompt), prompt)

    def describe(self) -> Mapping[str, Any]:
        """Return the inner scorer's settings."""
        return self._inner.describe()
