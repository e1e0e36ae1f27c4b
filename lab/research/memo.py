"""A cache of model calls, so that work shared by configurations is done once. Every call is a pure function.

A cache hit returns the same objects as the first time, so calls on those can be looked up too: equal arguments are
recognised by identity, and tensors are never compared.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from torch import Tensor

from sdvg_core.engine.inputs import BlockCall
from sdvg_core.engine.protocols import BlockGenerator, Engine, WrappedGenerator
from sdvg_core.engine.types import Anchor, Generated, History

from .observed import observed

Result = TypeVar("Result")
GIGABYTE = 1 << 30


class Memo:
    """Results of pure calls by their arguments. Beyond `limit` bytes, the least recently used are dropped.

    That costs only time: a recomputed result has the same values.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self._limit = limit
        self._bytes = 0
        # Arguments live as long as their result, so that no other object can get one of their ids.
        self._entries: OrderedDict[Hashable, tuple[Any, tuple[Any, ...]]] = OrderedDict()

    def call(self, kind: str, arguments: tuple[Any, ...], make: Callable[[], Result], *values: Hashable) -> Result:
        """Return the result of `make`, computed now or earlier for the same call.

        A call is identified by its `kind`, the identity of its `arguments`, and its `values`.
        """
        key = (kind, *values, *map(id, arguments))
        if key not in self._entries:
            self._entries[key] = make(), arguments
            self._bytes += _bytes_of(self._entries[key])
        self._entries.move_to_end(key)
        result: Result = self._entries[key][0]
        while self._bytes > self._limit:
            self._bytes -= _bytes_of(self._entries.popitem(last=False)[1])
        return result


def _bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_bytes_of, value)) if isinstance(value, tuple | list) else 0


class SharedEngine:
    """An engine with cached calls, for the runs of one prompt and seed.

    `limit`: bytes of decoded frames and decoder states to cache; latents are small and all cached. 0: no cache.
    """

    def __init__(self, engine: Engine, limit: float = GIGABYTE) -> None:
        self._engine = engine
        self._latents = Memo(float("inf") if limit else 0)
        self._pixels = Memo(limit)

    def engine(self, calls: Counter[str], draft_steps: int | None = None) -> Engine:
        """Return the engine for one run; its calls are counted, by part. `draft_steps`: of its drafts, or None."""

        def look_up(part: str, arguments: tuple[Any, ...], work: Callable[..., Any]) -> Any:
            """Look up a block by the committed blocks before it, frames by latents and state, scores by frames."""
            calls[part] += 1
            if part == "score":
                frames, prompt = arguments
                return self._pixels.call(part, (frames,), lambda: work(frames, prompt), prompt)
            if part == "decode":
                return self._pixels.call(part, arguments, lambda: work(*arguments))
            (call,) = arguments
            # The pixels kept for context follow from the latents, so the blocks alone identify a history.
            before = [part for block in call.history.blocks for part in (block.latents, block.condition)]
            over = call.restyle
            source = () if over.latents is None else (over.latents,)
            return self._latents.call(
                part,
                (call.noise, call.condition, *before, *call.handed_over, *source),
                lambda: work(replace(call, history=_unseen(call.history))),
                *(call.span, len(call.handed_over), call.stop, call.left_out, over.skip, over.share),
            )

        engine = observed(self._engine, look_up)
        if draft_steps is None or engine.drafter is None:
            return engine
        return replace(engine, drafter=ShortDrafts(engine.drafter, draft_steps))


class ShortDrafts(WrappedGenerator):
    """A drafter that stops after `draft_steps`, so that its calls are those of a handover and are made once.

    It must make its blocks whole: one of smaller blocks would finish all of them but the last.
    """

    def __init__(self, inner: BlockGenerator, draft_steps: int) -> None:
        super().__init__(inner)
        self.draft_steps = draft_steps
        self._stop = draft_steps

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block's first steps."""
        return self.inner.generate(replace(call, stop=min(call.stop or self._stop, self._stop)))


def _unseen(history: History) -> History:
    """Return the history with its context pixels as new objects, which no encoder can have encoded before.

    So the passes of a call do not depend on which run made it first. A remade block counts once more than it would
    alone the encoding of its context's first frame, which drafter and target otherwise share.
    """

    return replace(history, anchors=tuple(map(_as_new, history.anchors)))


def _as_new(anchor: Anchor) -> Anchor:
    return cache(lambda: (frame := anchor()).view_as(frame))
