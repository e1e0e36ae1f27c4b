"""Context policies: what keys and values a block sees of the history before it.

Both are lazy. A block that was accepted costs a model nothing until that model is next asked to generate.
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
    """What a policy needs of a model: its tree and operations, and its device.

    `text_of`: a condition's cross-attention K/V. `rope`: the rotary table of a first position and a grid of
    tokens. `before_pass`: called before every forward pass with its kind; may raise to interrupt. `kv_fp8`: whether
    keys and values are kept in float8_e4m3fn. `stages`: of every layer.
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
        """Return what passes over latents `x` (`b c t h w`) need at that place."""
        rope = self.rope(place.position, token_grid(self.tree, x.shape[2:]))
        return Pass(self.text_of(condition), cache, place, rope, self.ops, self.stages)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A cache that holds the context of one block, the block's place in it, and what that took."""

    cache: KVCache
    place: Place
    passes: int
    encodes: int


class ContextPolicy(Protocol):
    """Brings a model's keys and values in line with a history."""

    @property
    def anchor_horizon(self) -> int:
        """How many of the newest latent frames' pixels it may ask the history for."""
        ...

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Return the context of the block at `span`; `size` is its latents' (h, w)."""
        ...


class AnchorEncoder:
    """Encodes the pixel frame that a window begins with; remembers the newest, which drafter and target share."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self._encode = encode
        self._newest: tuple[Tensor, Tensor] | None = None

    def __call__(self, frame: Tensor) -> tuple[Tensor, int]:
        """Return the latents `b c 1 h w` of a pixel frame `b 1 c h w`, and how many encodes that took."""
        newest = self._newest  # once, since drafter and target may work side by side
        if newest and newest[0] is frame:
            return newest[1], 0
        latents = self._encode(frame)
        self._newest = (frame, latents)
        return latents, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recompute:
    """Krea's policy: the newest `frames` latent frames are passed anew, at positions from 0, before every block.

    Once the clip is longer than that, the window's first frame is no longer the clip's first, which alone stands
    for a single pixel frame. So it is encoded again, as an image, from the last pixel frame that it shows. Nothing
    is kept between blocks, so there is no limit of length.
    """

    encode_anchor: AnchorEncoder
    frames: int = 3

    @property
    def anchor_horizon(self) -> int:
        """The window's own length: only its first frame is asked for."""
        return self.frames

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Pass the window in pieces of the block's size, each seeing those before it."""
        window = min(history.frames, self.frames)
        # Of one size also while the clip is shorter than the window, so that every block's takes the same memory.
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


class Incremental:
    """Self-Forcing's policy: keys and values of a sliding window are kept, at absolute positions.

    `window` counts the block being made; the clip's first `sink` latent frames never leave it. A frame's slot
    follows from its number, so a new frame takes the place of the one that leaves the window, and re-making a block
    overwrites what its last making wrote. Every committed block gets one context pass under its own condition, in
    order, when the model is next needed: a block's keys and values depend on those before it, so none may be left
    out, however long ago it left the window.

    If the newest block turns out to be another one, it is the only one that is passed anew, as long as nothing that
    its window shows was overwritten meanwhile. In a window that is full, the block made after it has done that;
    `undo` keeps copies of what such a block overwrites. They take a block's share of the cache.
    """

    anchor_horizon = 0

    def __init__(self, *, window: int, sink: int = 0, undo: bool = False) -> None:
        self.window, self.sink, self.undo = window, sink, undo
        self._cache: KVCache | None = None
        self._size: tuple[int, int] | None = None
        self._blocks: tuple[Block, ...] = ()
        # What the block made after `_blocks` has overwritten, which is nothing until the window is full; None if
        # that is not known.
        self._overwritten: Copied | None = None

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Pass the blocks committed since the last call; all of them if the history is another one."""
        if self.window < self.sink + span.frames:
            raise BadInput(
                f"expected a window that holds the sink and one block, but {self.window} latent frames are fewer "
                f"than {self.sink} + {span.frames}; widen the window"
            )
        cache = self._cache_for(model, history, size)
        missing = history.blocks[len(self._blocks) :]
        if missing:
            self._overwritten = None
        for block in missing:
            model.write_context(block.latents, block.condition, cache, self._place(block.span))
            self._blocks = (*self._blocks, block)
        place = self._place(span)
        if span.stop <= self.window:
            self._overwritten = ()
        elif missing or self._overwritten == ():
            self._overwritten = cache.copy(place.slots) if self.undo else None
        return Prepared(cache, place, len(missing), 0)

    def _cache_for(self, model: Model, history: History, size: tuple[int, int]) -> KVCache:
        """Return a cache that holds the first blocks of the history: the one there is, one block back, or none."""
        if self._cache is not None and self._size == size:
            if _begins_with(history, self._blocks):
                return self._cache
            if self._overwritten is not None and _begins_with(history, self._blocks[:-1]):
                self._cache.restore(self._overwritten)
                self._blocks, self._overwritten = self._blocks[:-1], None
                return self._cache
        self._cache, self._size, self._blocks = model.new_cache(self.window, size), size, ()
        self._overwritten = None
        return self._cache

    def _place(self, span: Span) -> Place:
        slots = tuple(self._slot(frame) for frame in range(span.start, span.stop))
        return Place(span.start, slots, min(span.stop, self.window))

    def _slot(self, frame: int) -> int:
        if frame < self.sink:
            return frame
        return self.sink + (frame - self.sink) % (self.window - self.sink)


def _begins_with(history: History, blocks: tuple[Block, ...]) -> bool:
    return len(blocks) <= len(history.blocks) and all(
        known.same_as(block) for known, block in zip(blocks, history.blocks, strict=False)
    )
