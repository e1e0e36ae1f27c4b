"""The pixels of blocks, decoded when they are first read.

So a rejected draft whose scores are known is not decoded, and a block whose frames an earlier run stored is decoded
only if the decoder must go on from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from .history import History
from .memo import UNKNOWN, PixelStore, Reuse, pixels_key
from .protocols import VideoCodec
from .records import Stopwatch
from .types import Block


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A codec, and the store of its results for later runs. `watch`: counts the seconds of decoding."""

    codec: VideoCodec
    reuse: Reuse | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def store(self) -> PixelStore:
        """What earlier runs left."""
        return (self.reuse and self.reuse.pixels) or PixelStore()

    def pixels(self, history: History, block: Block) -> Pixels:
        """Return the pixels of `block`, which follows `history`. Nothing is decoded yet."""
        key = pixels_key(self.reuse.identities.codec, (*history.blocks, block)) if self.reuse else ""
        return Pixels(block, DecodeState(self, key, block, history.decode_state))


class DecodeState:
    """The decoder's state after a block. If it is not known, the block is decoded for it when it is asked for.

    `before`: the state before the block; None at the beginning of the clip.
    """

    def __init__(self, decoder: Decoder, key: str, block: Block, before: DecodeState | None) -> None:
        self.decoder = decoder
        self.key = key
        self.begins_clip = before is None
        self._block = block
        self._before = before
        self._state = UNKNOWN

    def get(self) -> Any:
        """Return the state. The blocks since the last known state are decoded in order, as many as there are."""
        unknown: list[DecodeState] = []
        state: DecodeState | None = self
        while state and not state._is_known():
            unknown.append(state)
            state = state._before
        for state in reversed(unknown):
            state.keep(state.decode())
        return self._state

    def decode(self) -> Tensor:
        """Decode the block, and return its frames. The state before it is then no longer needed."""
        assert self._state is UNKNOWN, "a block is decoded once"
        before = self._before.get() if self._before else None
        with self.decoder.watch.part("decode"):
            frames, self._state = self.decoder.codec.decode(self._block.latents, before)
        self._before = None
        return frames

    def keep(self, frames: Tensor) -> None:
        """Keep the state for later runs, and the block's frames, if the block was decoded and there is room."""
        reuse = self.decoder.reuse
        if reuse and reuse.pixels and self._state is not UNKNOWN:
            reuse.pixels.limit = reuse.store.limit - reuse.store.bytes
            reuse.pixels.put(self.key, frames, self._state)

    def _is_known(self) -> bool:
        if self._state is UNKNOWN:
            self._state = self.decoder.store.state(self.key)
        return self._state is not UNKNOWN


class Pixels:
    """The pixel frames of a block, decoded when they are first asked for, unless an earlier run left them.

    `state`: the decoder's after the block.
    """

    def __init__(self, block: Block, state: DecodeState) -> None:
        self.block = block
        self.state = state
        self._frames: Tensor | None = None
        self._anchors: tuple[Tensor, ...] = ()

    @property
    def key(self) -> str:
        """The key of the frames; empty if nothing is kept."""
        return self.state.key

    @property
    def count(self) -> int:
        """How many frames there are; the clip's first latent frame shows one."""
        stride = self.state.decoder.codec.temporal_stride
        return stride * self.block.span.frames - (stride - 1 if self.state.begins_clip else 0)

    def frames(self) -> Tensor:
        """Return the frames, `b f c h w`, which are kept here until they are released."""
        if self._frames is None:
            kept = self.state.decoder.store.frames(self.key)
            self._frames = self.state.decode() if kept is None else kept
        return self._frames

    def release(self) -> None:
        """Leave the frames of a committed block to later runs, and keep only the anchors here."""
        frames = self.frames()
        self.state.keep(frames)
        self._anchors = last_frames(frames, self.block.span.frames, self.state.decoder.codec.temporal_stride)
        self._frames = None

    @property
    def anchors(self) -> tuple[Callable[[], Tensor], ...]:
        """For each latent frame, a function that returns the last pixel frame it shows, `b 1 c h w`."""
        return tuple(partial(self._anchor, place) for place in range(self.block.span.frames))

    def _anchor(self, place: int) -> Tensor:
        if not self._anchors:
            self.release()
        return self._anchors[place]


def last_frames(frames: Tensor, latent_frames: int, temporal_stride: int) -> tuple[Tensor, ...]:
    """Return copies of the last pixel frame of each latent frame of a block, so that the block can be freed."""
    newest = frames.shape[1] - 1
    backs = reversed(range(latent_frames))
    return tuple(frames[:, newest - i * temporal_stride, None].clone() for i in backs)
