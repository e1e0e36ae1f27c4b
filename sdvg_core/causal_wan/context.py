"""Context policies: what keys and values a block sees of the history before it.

Both are lazy. A block that was accepted costs a model nothing until that model is next asked to generate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import BadInput
from ..history import History
from ..types import Block, Condition, Span
from .attention import Ops
from .cache import KVCache, Place
from .forward import TextKV, context_pass, token_grid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """What a policy needs of a model: its tree and operations, and its device.

    `text_of`: a condition's cross-attention K/V. `before_pass`: called before every forward pass with its kind;
    may raise to interrupt.
    """

    tree: Any
    ops: Ops
    device: torch.device
    text_of: Callable[[Condition], TextKV]
    before_pass: Callable[[str], None]

    def new_cache(self, frames: int, size: tuple[int, int]) -> KVCache:
        """Return an empty cache with a slot for each of `frames` latent frames of `size` = (h, w)."""
        _, rows, columns = token_grid(self.tree, (1, *size))
        return KVCache(self.tree, frames, rows * columns, self.ops.dtype, self.device)

    def write_context(self, clean: Tensor, condition: Condition, cache: KVCache, place: Place) -> None:
        """Run one context pass over clean latents `b c t h w`."""
        self.before_pass("context")
        clean = clean.to(self.device)
        rope = self.ops.rope(self.tree, place.position, token_grid(self.tree, clean.shape[2:]), self.device)
        context_pass(self.tree, clean, self.text_of(condition), cache, place, rope, self.ops)


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
        if self._newest and self._newest[0] is frame:
            return self._newest[1], 0
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
        cache = model.new_cache(window + span.frames, size)
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
    """

    anchor_horizon = 0

    def __init__(self, *, window: int, sink: int = 0) -> None:
        self.window, self.sink = window, sink
        self._cache: KVCache | None = None
        self._size: tuple[int, int] | None = None
        self._blocks: tuple[Block, ...] = ()

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> Prepared:
        """Pass the blocks committed since the last call, or all of them if the history is another one."""
        if self.window < self.sink + span.frames:
            raise BadInput(
                f"expected a window that holds the sink and one block, but {self.window} latent frames are fewer "
                f"than {self.sink} + {span.frames}; widen the window"
            )
        if not self._holds_prefix_of(history, size):
            self._cache, self._size, self._blocks = model.new_cache(self.window, size), size, ()
        assert self._cache is not None
        missing = history.blocks[len(self._blocks) :]
        for block in missing:
            model.write_context(block.latents, block.condition, self._cache, self._place(block.span))
            self._blocks = (*self._blocks, block)
        return Prepared(self._cache, self._place(span), len(missing), 0)

    def _holds_prefix_of(self, history: History, size: tuple[int, int]) -> bool:
        known = len(self._blocks)
        return (
            self._cache is not None
            and self._size == size
            and known <= len(history.blocks)
            and all(a.same_as(b) for a, b in zip(self._blocks, history.blocks, strict=False))
        )

    def _place(self, span: Span) -> Place:
        slots = tuple(self._slot(frame) for frame in range(span.start, span.stop))
        return Place(span.start, slots, min(span.stop, self.window))

    def _slot(self, frame: int) -> int:
        if frame < self.sink:
            return frame
        return self.sink + (frame - self.sink) % (self.window - self.sink)
