"""The pixels of blocks, decoded lazily.

So a rejected draft with stored scores is not decoded, and a block with stored frames is decoded only if a later
block needs the decoder's state. Decoding every block at once would be simpler, but a repeated run would decode
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from .protocols import VideoCodec
from .records import Stopwatch
from .reuse import UNKNOWN, PixelStore, Reuse, pixels_key
from .types import Block, History


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A codec with the store of its results. `watch`: times the decoding."""

    codec: VideoCodec
    reuse: Reuse | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def store(self) -> PixelStore:
        """The store of decoded pixels; an empty one without re-use."""
        return (self.reuse and self.reuse.pixels) or PixelStore()

    def pixels(self, history: History, block: Block) -> Pixels:
        """Return the pixels of `block`, which follows `history`. Nothing is decoded yet."""
        key = pixels_key(self.reuse.part_keys.codec, (*history.blocks, block)) if self.reuse else ""
        return Pixels(block, DecodeState(self, key, block, history.decode_state))


class DecodeState:
    """The decoder's state after a block, computed lazily. `before`: that before it; None at the clip's start."""

    def __init__(self, decoder: Decoder, key: str, block: Block, before: DecodeState | None) -> None:
        self.decoder = decoder
        self.key = key
        self.begins_clip = before is None
        self._block = block
        self._before = before
        self._state = UNKNOWN

    def get(self) -> Any:
        """Return the state, after decoding all blocks since the last known one in order."""
        unknown: list[DecodeState] = []
        state: DecodeState | None = self
        while state and not state._is_known():
            unknown.append(state)
            state = state._before
        for state in reversed(unknown):
            state.keep(state.decode())
        return self._state

    def decode(self) -> Tensor:
        """Decode the block and return its frames; release the state before it."""
        assert self._state is UNKNOWN, "a block is decoded once"
        before = self._before.get() if self._before else None
        with self.decoder.watch.part("decode"):
            frames, self._state = self.decoder.codec.decode(self._block.latents, before)
        self._before = None
        return frames

    def keep(self, frames: Tensor) -> None:
        """Store state and frames for later runs if the block was decoded."""
        reuse = self.decoder.reuse
        if reuse and reuse.pixels and self._state is not UNKNOWN:
            reuse.pixels.limit = reuse.store.limit - reuse.store.bytes
            reuse.pixels.put(self.key, frames, self._state)

    def _is_known(self) -> bool:
        if self._state is UNKNOWN:
            self._state = self.decoder.store.state(self.key)
        return self._state is not UNKNOWN


@dataclass(eq=False)
class Pixels:
    """The pixel frames of a block, decoded lazily unless they are stored. `state`: after the block."""

    block: Block
    state: DecodeState
    _frames: Tensor | None = None
    _anchors: tuple[Tensor, ...] = ()

    @property
    def key(self) -> str:
        """The cache key of the frames; empty without re-use."""
        return self.state.key

    @property
    def count(self) -> int:
        """Number of pixel frames; the clip's first latent frame has one."""
        stride = self.state.decoder.codec.temporal_stride
        return stride * self.block.span.frames - (stride - 1 if self.state.begins_clip else 0)

    def frames(self) -> Tensor:
        """Return the frames, `b f c h w`, and keep them until `store`."""
        if self._frames is None:
            kept = self.state.decoder.store.frames(self.key)
            self._frames = self.state.decode() if kept is None else kept
        return self._frames

    def store(self) -> None:
        """Store the frames of a committed block for later runs; of them, keep only the anchors here."""
        frames = self.frames()
        self.state.keep(frames)
        self._anchors = last_frames(frames, self.block.span.frames, self.state.decoder.codec.temporal_stride)
        self._frames = None

    @property
    def anchors(self) -> tuple[Callable[[], Tensor], ...]:
        """The anchor of each latent frame."""
        return tuple(partial(self._anchor, place) for place in range(self.block.span.frames))

    def _anchor(self, place: int) -> Tensor:
        if not self._anchors:
            # Own drafts alone come here. Contexts ask for anchors from the oldest frame on, so no later block has
            # decoded this one on its way to its own state.
            self.store()
        return self._anchors[place]


def last_frames(frames: Tensor, latent_frames: int, temporal_stride: int) -> tuple[Tensor, ...]:
    """Return the last pixel frame of each latent frame, as copies, so that the block can be freed."""
    newest = frames.shape[1] - 1
    backs = reversed(range(latent_frames))
    return tuple(frames[:, newest - i * temporal_stride, None].clone() for i in backs)
