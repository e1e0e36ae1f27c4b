"""Which latent frames each block of a clip covers."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import BadInput
from .types import Span

MOST_BLOCKS = 100_000


def plan_spans(
    blocks: int, block_frames: int, start: int = 0, takes: Mapping[int, int] | None = None
) -> tuple[Span, ...]:
    """Return the spans of `blocks` new blocks after `start` existing latent frames.

    `takes`: the take of each block that is not to have its first, by the block's place among the new ones, from 0.

    Blocks are numbered from the start of the clip. So a clip made in two runs has the same numbers, and with them
    the same noise, as one made in a single run. A start image is one latent frame before block 0.
    """
    check_blocks(blocks)
    first, takes = blocks_before(start, block_frames), takes or {}
    return tuple(Span(first + i, start + i * block_frames, block_frames, takes.get(i, 1)) for i in range(blocks))


def blocks_before(frames: int, block_frames: int) -> int:
    """Return how many blocks an existing clip has, and so the number of the next one. A start image has none."""
    return frames // block_frames


def check_blocks(blocks: int) -> None:
    """Raise `BadInput` unless a video can have this many blocks."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or not 1 <= blocks <= MOST_BLOCKS:
        raise BadInput(f"a video has from 1 to {MOST_BLOCKS} blocks, but got {blocks!r:.60}; the paper uses 9")


def spans_of_clip(frames: int, block_frames: int) -> tuple[Span, ...]:
    """Return the spans of an existing clip. Frames that fill no block come first, as a start image does."""
    odd = frames % block_frames
    lead = (Span(0, 0, odd),) if odd else ()
    return lead + tuple(Span(s // block_frames, s, block_frames) for s in range(odd, frames, block_frames))
