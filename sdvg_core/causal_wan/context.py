"""Context policies: which keys and values of the history a block sees.

Both are lazy. An accepted block costs a model nothing until that model next generates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..engine.history import History
from ..engine.types import Block, Condition, Span
from ..errors import BadInput
from .attention import Ops
from .cache import Copied, KVCache, Place
from .forward import PLAIN, Pass, Stages, TextKV, context_pass, token_grid
from .fp8_cache import Fp8KVCache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """What a policy needs of a model: its tree, operations and device.

    `text_of`: a condition's cross-attention K/V. `rope`: the rotary table for a first position and a grid of
    tokens. `before_pass`: called before every forward pass with its kind; may raise to interrupt. `kv_fp8`: keep
    keys and values in float8_e4m3fn. `stages`: of every layer.
    """

    tree: Any
    ops: Ops
    device: torch.device
    text_of: Callable[[Condition], TextKV]
    rope: Callable[[int, tuple[int, int, int]], Any]
    before_pass: Callable[[str], None]
    kv_fp8: bool = False
    stages: Stages = PLAIN

    def new_cache(self, frames: int, size: tuple[int, int]) -> KVCache:
        """Return an empty cache with a slot for each of `frames` latent frames of `size` = (h, w)."""
        _, rows, columns = token_grid(self.tree, (1, *size))
        kind = Fp8KVCache if self.kv_fp8 else KVCache
        return kind(self.tree, frames, rows * columns, self.ops.dtype, self.device)

    def write_context(self, clean: Tensor, condition: Condition, cache: KVCache, place: Place) -> None:
        """Run one context pass over clean latents `b c t h w`."""
        self.before_pass("context")
        clean = clean.to(self.device)
        context_pass(self.tree, clean, self.pass_at(place, cache, condition, clean))

    def pass_at(self, place: Place, cache: KVCache, condition: Condition, x: Tensor) -> Pass:
        """Return the inputs for passes over latents `x` (`b c t h w`) at `place`."""
        rope = self.rope(place.position, token_grid(self.tree, x.shape[2:]))
        return Pass(self.text_of(condition), cache, place, rope, self.ops, self.stages)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A cache with the context of one block, the block's place in it, and how many passes and encodes that took."""

    cache: KVCache
    place: Place
    passes: int
    encodes: int


class ContextPolicy(Protocol):
    """Brings a model's keys and values in line with a history."""

    @property
    def anchor_horizon(self) -> int:
        """For how many of the newest latent frames it may ask the history for pixels."""
        ...

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Return the context of the block at `span`; `size` is its latents' (h, w)."""
        ...


class AnchorEncoder:
    """Encodes the pixel frame a window starts with. It remembers the newest one, which drafter and target share."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self._encode = encode
        self._newest: tuple[Tensor, Tensor] | None = None

    def __call__(self, frame: Tensor) -> tuple[Tensor, int]:
        """Return the latents `b c 1 h w` of a pixel frame `b 1 c h w`, and how many encodes that took."""
        newest = self._newest  # read once, as drafter and target may run in parallel
        if newest and newest[0] is frame:
            return newest[1], 0
        latents = self._encode(frame)
        self._newest = (frame, latents)
        return latents, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recompute:
    """Krea's policy: before every block, pass the newest `frames` latent frames again, at positions from 0.

    Only a clip's first latent frame holds a single pixel frame. Once the clip is longer than the window, the
    window's first frame is another one. So it is encoded again, as an image, from the last pixel frame it shows.
    Nothing is kept between blocks, so the length is unlimited.
    """

    encode_anchor: AnchorEncoder
    frames: int = 3

    @property
    def anchor_horizon(self) -> int:
        """The window's length: only its first frame is needed."""
        return self.frames

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Pass the window in pieces of the block's size; each piece sees those before it."""
        window = min(history.frames, self.frames)
        # The same size even while the clip is shorter than the window, so that every block takes the same memory.
        cache = model.new_cache(self.frames + span.frames, size)
        passes = encodes = 0
        if window:
            clean, encodes = self._window_latents(history, window)
            for first in range(0, window, span.frames):
                last = min(first + span.frames, window)
                place = Place(first, tuple(range(first, last)), last)
                model.write_context(clean[:, :, first:last], condition, cache, place)
                passes += 1
        stop = window + span.frames
        return Prepared(cache, Place(window, tuple(range(window, stop)), stop), passes, encodes)

    def _window_latents(self, history: History, window: int) -> tuple[Tensor, int]:
        first = history.frames - window
        if first == 0:
            return history.latents(0, window), 0
        anchor, encodes = self.encode_anchor(history.anchor(first))
        rest = history.latents(first + 1, history.frames) if window > 1 else anchor[:, :, :0]
        return torch.cat((anchor.to(rest), rest), dim=2), encodes


@dataclass(frozen=True, slots=True, eq=False)
class _Overwritten:
    """What the slots of the latent frames from `start` held before those frames took them."""

    start: int
    stop: int
    contents: Copied


class Incremental:
    """Self-Forcing's policy: keep the keys and values of a sliding window, at absolute positions.

    `window` includes the block being generated; the clip's first `sink` latent frames never leave it. A frame's
    slot follows from its number. So a new frame takes the slot of the one that leaves the window, and regenerating
    a block overwrites what it wrote the last time. When the model is next needed, each block committed since gets
    one context pass with its own condition, in order. A block's keys and values depend on those before it, so none
    may be skipped, however long ago it left the window.

    If the newest blocks turn out to be others, only those are passed again, provided that nothing in their windows
    was overwritten in the meantime. Once the window is full, every block generated after them has done that.
    `undo`: of how many of the newest blocks to copy what they overwrite. A copy takes one block's share of the cache.
    """

    anchor_horizon = 0

    def __init__(self, *, window: int, sink: int = 0, undo: int = 0) -> None:
        self.window, self.sink, self.undo = window, sink, undo
        self._forget()

    def _forget(self) -> None:
        self._cache: KVCache | None = None
        self._size: tuple[int, int] | None = None
        # The blocks whose context is in the cache, and the latent frame up to which anything has been written.
        self._blocks: tuple[Block, ...] = ()
        self._begun = 0
        # What the newest frames overwrote, oldest first. What those before frame `_lost` overwrote is not known.
        self._overwritten: tuple[_Overwritten, ...] = ()
        self._lost = 0

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Pass the blocks committed since the last call, or all of them if the history is another one."""
        if self.window < self.sink + span.frames:
            raise BadInput(
                f"there must be room in the window for the sink and one block, but its {self.window} latent frames "
                f"are fewer than {self.sink} + {span.frames}; widen the window"
            )
        cache = self._cache_for(model, history, size)
        missing = history.blocks[len(self._blocks) :]
        for block in missing:
            self._begin(cache, block.span)
            model.write_context(block.latents, block.condition, cache, self._place(block.span))
            self._blocks = (*self._blocks, block)
        self._begin(cache, span)
        return Prepared(cache, self._place(span), len(missing), 0)

    def _cache_for(self, model: Model, history: History, size: tuple[int, int]) -> KVCache:
        """Return a cache with the first blocks of the history: the one there is, or a new one."""
        if self._cache is not None and self._size == size and self._go_back(self._cache, history):
            return self._cache
        self._forget()
        self._cache, self._size = model.new_cache(self.window, size), size
        return self._cache

    def _go_back(self, cache: KVCache, history: History) -> bool:
        """Drop the blocks that are not in the history. Return whether the cache then is as it was before them."""
        shared = _shared(self._blocks, history.blocks)
        if shared == len(self._blocks):
            return True
        # The first block that differs is written over; what later ones overwrote comes back.
        stop = self._blocks[shared].span.stop
        if self._lost > stop:
            return False
        for later in reversed([held for held in self._overwritten if held.start >= stop]):
            cache.restore(later.contents)
        self._overwritten = tuple(held for held in self._overwritten if held.start < stop)
        self._blocks, self._begun = self._blocks[:shared], stop
        return True

    def _begin(self, cache: KVCache, span: Span) -> None:
        """Keep what the slots of `span`, which are about to be written, hold of frames that leave the window."""
        if span.start < self._begun:
            return  # the same frames again
        if span.stop > self.window:
            contents = cache.copy(self._place(span).slots) if self.undo else ()
            held = (*self._overwritten, _Overwritten(span.start, span.stop, contents))
            forgotten = max(len(held) - self.undo, 0)
            if forgotten:
                self._lost = held[forgotten - 1].stop
            self._overwritten = held[forgotten:]
        self._begun = span.stop

    def _place(self, span: Span) -> Place:
        slots = tuple(self._slot(frame) for frame in range(span.start, span.stop))
        return Place(span.start, slots, min(span.stop, self.window))

    def _slot(self, frame: int) -> int:
        if frame < self.sink:
            return frame
        return self.sink + (frame - self.sink) % (self.window - self.sink)


def _shared(ours: tuple[Block, ...], theirs: tuple[Block, ...]) -> int:
    """Return how many of the first blocks are the same."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if not a.same_as(b)), min(len(ours), len(theirs)))
