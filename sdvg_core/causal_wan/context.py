"""Context policies: the keys and values of the history that a block sees.

They are lazy: an accepted block costs a model nothing until that model generates again. Passing every committed
block through both models at once would waste most of the target's passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..engine.history import History, scene_of
from ..engine.types import Condition, Span
from .attention import TorchOps
from .cache import CacheSlots, Fp8KVCache, KVCache, contiguous_runs
from .forward import PLAIN, Pass, Stages, TextKV, context_pass, token_grid

CUT = 45
"""Least position of a block that begins a new scene, as in Infinity-RoPE."""
JUMP = 27
"""Least number of positions by which a cut moves such a block."""


def beyond_cut(position: int) -> int:
    """Return the position of a block that begins a new scene; without the cut it would be `position`."""
    return max(CUT, position + JUMP)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A model as used by a context policy.

    `text_of`: cross-attention K/V of a condition. `rope`: rotary table for a first position and a grid of tokens.
    `before_pass`: called before every forward pass with its kind; may raise to interrupt. `kv_fp8`: keep keys and
    values in float8_e4m3fn. `stages`: of every layer.
    """

    tree: Any
    ops: TorchOps
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

    def write_context(self, clean: Tensor, condition: Condition, cache: KVCache, slots: CacheSlots) -> None:
        """Run one context pass over clean latents `b c t h w`."""
        self.before_pass("context")
        clean = clean.to(self.device)
        context_pass(self.tree, clean, self.pass_at(slots, cache, condition, clean))

    def pass_at(self, slots: CacheSlots, cache: KVCache, condition: Condition, x: Tensor) -> Pass:
        """Return the inputs of passes over latents `x` (`b c t h w`) in these slots."""
        grid = token_grid(self.tree, x.shape[2:])
        pieces = [
            (piece, min(piece + grid[0], stop), offset + piece - first)
            for first, stop, offset in contiguous_runs(slots.positions)
            for piece in range(first, stop, grid[0])
        ]
        frame = grid[1] * grid[2]
        keys = tuple(
            (slice(offset * frame, (offset + stop - first) * frame), self.rope(first, (stop - first, *grid[1:])))
            for first, stop, offset in pieces
        )
        rope = self.rope(slots.position, grid)
        return Pass(self.text_of(condition), cache, slots, rope, self.ops, self.stages, keys)


@dataclass(frozen=True, slots=True, eq=False)
class BlockContext:
    """A cache with the context of one block, the block's slots, and the number of passes and encodes it took."""

    cache: KVCache
    slots: CacheSlots
    passes: int
    encodes: int


class ContextPolicy(Protocol):
    """A policy that provides the context of a block."""

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose pixels it may need."""

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> BlockContext:
        """Return the context of the block at `span`. `size`: (h, w) of its latents."""


class AnchorEncoder:
    """Encodes the first pixel frame of a window; memoises the newest one, which drafter and target share."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self._encode = encode
        self._newest: tuple[Tensor, Tensor] | None = None

    def __call__(self, frame: Tensor) -> tuple[Tensor, int]:
        """Return the latents `b c 1 h w` of a pixel frame `b 1 c h w`, and the number of encodes (0 or 1)."""
        newest = self._newest  # read once, as drafter and target may run in parallel
        if newest and newest[0] is frame:
            return newest[1], 0
        latents = self._encode(frame)
        self._newest = (frame, latents)
        return latents, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recompute:
    """Krea's policy: before every block, pass the newest `frames` latent frames again, at positions from 0.

    The first latent frame of a window must hold a single pixel frame, as only a clip's first does. In a longer clip
    it is therefore encoded again, as an image, from its last pixel frame. Nothing is kept between blocks, so the
    length is unlimited.
    `keep_first`: the window begins with the clip's first latent frame, so that nothing is encoded. Source: Krea's
    `keep_first_frame`.
    """

    encode_anchor: AnchorEncoder
    frames: int = 3
    keep_first: bool = False

    @property
    def anchor_horizon(self) -> int:
        """The window's length, as the pixels of its first frame are needed; 0 with `keep_first`."""
        return 0 if self.keep_first else self.frames

    def prepare(
        self, model: Model, history: History, span: Span, condition: Condition, size: tuple[int, int]
    ) -> BlockContext:
        """Pass the window in pieces of the block's size, each of which sees those before it."""
        window = min(history.frames, self.frames)
        # Full size even while the clip is shorter, so that every block takes the same memory.
        cache = model.new_cache(self.frames + span.frames, size)
        passes = 0
        encodes = 0
        if window:
            clean, encodes = self._window_latents(history, window)
            for first in range(0, window, span.frames):
                last = min(first + span.frames, window)
                slots = CacheSlots(first, tuple(range(first, last)), last)
                model.write_context(clean[:, :, first:last], condition, cache, slots)
                passes += 1
        stop = window + span.frames
        position = beyond_cut(window) if scene_of(history.blocks, condition).cut else window
        return BlockContext(cache, CacheSlots(position, tuple(range(window, stop)), stop), passes, encodes)

    def _window_latents(self, history: History, window: int) -> tuple[Tensor, int]:
        first = history.frames - window
        if first == 0:
            return history.latents(0, window), 0
        encodes = 0
        if self.keep_first:
            anchor = history.latents(0, 1)
        else:
            anchor, encodes = self.encode_anchor(history.anchor(first))
        rest = history.latents(first + 1, history.frames) if window > 1 else anchor[:, :, :0]
        return torch.cat((anchor.to(rest), rest), dim=2), encodes
