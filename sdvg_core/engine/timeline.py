"""A history with the decoder's state at its end, and how to get there by decoding existing blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .history import History
from .parts import VideoCodec
from .types import Block


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A history with the decoder's state at its end: everything the next block depends on.

    `shown`: the last pixel frame, `b 1 c h w`; None if there is none, or if nobody will ask for pixels.
    """

    history: History = field(default_factory=History)
    decode_state: Any = None
    shown: Tensor | None = None

    def commit(self, block: Block, frames: Tensor | None, decode_state: Any, temporal_stride: int) -> Timeline:
        """Return the timeline with `block` and its pixel frames `b f c h w` appended.

        `frames` is None if nobody will ask for pixels.
        """
        anchors = () if frames is None else last_frames(frames, block.span.frames, temporal_stride)
        return Timeline(self.history.commit(block, anchors), decode_state, anchors[-1] if anchors else None)


def last_frames(frames: Tensor, latent_frames: int, temporal_stride: int) -> tuple[Tensor, ...]:
    """Return copies of the last pixel frame of each latent frame of a block, so that the block can be freed."""
    newest = frames.shape[1] - 1
    backs = reversed(range(latent_frames))
    return tuple(frames[:, newest - i * temporal_stride, None].clone() for i in backs)


def replay(blocks: tuple[Block, ...], codec: VideoCodec, horizon: int) -> Iterator[tuple[Timeline, Tensor]]:
    """Decode `blocks` from the start; after each, yield the timeline and the block's frames `b f c h w`."""
    timeline = Timeline(History(horizon=horizon))
    for block in blocks:
        frames, state = codec.decode(block.latents, timeline.decode_state)
        timeline = timeline.commit(block, frames, state, codec.temporal_stride)
        yield timeline, frames


def earlier(timeline: Timeline, blocks: int, codec: VideoCodec) -> Timeline:
    """Return `timeline` as it was `blocks` blocks ago, by decoding from the start."""
    if not blocks:
        return timeline
    horizon = timeline.history.horizon
    before = Timeline(History(horizon=horizon))
    for after, _ in replay(timeline.history.blocks[:-blocks], codec, horizon):
        before = after
    return before
