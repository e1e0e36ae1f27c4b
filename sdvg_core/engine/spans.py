"""Which latent frames each block of a clip covers."""

from __future__ import annotations

from ..errors import BadInput
from .types import Span

MOST_BLOCKS = 100_000


def plan_spans(blocks: int, block_frames: int, start: int = 0) -> tuple[Span, ...]:
    """Return the spans of `blocks` new blocks after `start` latent frames that are already there.

    Blocks are numbered from the beginning of the clip, so a clip made in two goes has the numbers, and with them
    the noise, of one made in one go. A start image is one latent frame before block 0.
    """
    check_blocks(blocks)
    first = start // block_frames
    return tuple(Span(first + i, start + i * block_frames, block_frames) for i in range(blocks))


def check_blocks(blocks: int) -> None:
    """Raise `BadInput` unless a video can have so many blocks."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 1 <= blocks <= MOST_BLOCKS:
        raise BadInput(f"a video has from 1 to {MOST_BLOCKS} blocks, but got {blocks!r:.60}; the paper uses 9")


def spans_of_clip(frames: int, block_frames: int) -> tuple[Span, ...]:
    """Return the spans of a clip that is already there; frames that fill no block come first, as an image does."""
    odd = frames % block_frames
    lead = (Span(0, 0, odd),) if odd else ()
    return lead + tuple(Span(s // block_frames, s, block_frames) for s in range(odd, frames, block_frames))
