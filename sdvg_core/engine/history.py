"""The committed blocks as an immutable value: `commit()` returns a new history, so a rejection needs no undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .types import Block, Condition

Anchor = Callable[[], Tensor]
"""Function that returns the last pixel frame of a latent frame, `b 1 c h w`; always the same object."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Everything that the next block depends on: committed blocks, anchors, and the decoder's state.

    `anchors`: of the newest latent frames, oldest first; at most `horizon`, so that memory does not grow with the
    clip. `decode_state`: a `DecodeState` after the newest block; None before the first, or if nothing is decoded.
    """

    blocks: tuple[Block, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    horizon: int = 0
    decode_state: Any = None

    @property
    def frames(self) -> int:
        """Number of committed latent frames."""
        return self.blocks[-1].span.stop if self.blocks else 0

    def commit(self, block: Block, anchors: tuple[Anchor, ...] = (), decode_state: Any = None) -> History:
        """Return the history with `block` appended. `anchors`: one for each of its latent frames.

        Raises `ValueError` if it does not start where the history ends.
        """
        if block.span.start != self.frames or block.latents.shape[2] != block.span.frames:
            raise ValueError(
                f"the next block starts at latent frame {self.frames}, but got {block.latents.shape[2]} frames for "
                f"{block.span}; commit blocks in order"
            )
        kept = (self.anchors + anchors)[-self.horizon :] if self.horizon else ()
        return History((*self.blocks, block), kept, self.horizon, decode_state)

    def latents(self, first: int, last: int) -> Tensor:
        """Return latent frames `first` to `last` (exclusive), `b c t h w`, on the device of the newest one."""
        parts = [
            b.latents[:, :, max(first - b.span.start, 0) : last - b.span.start]
            for b in self.blocks
            if b.span.start < last and b.span.stop > first
        ]
        # Blocks may be on different devices: the drafter's, the target's, or the host for a continued clip.
        return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1]) for part in parts], dim=2)

    def anchor(self, frame: int) -> Tensor:
        """Return the last pixel frame of latent frame `frame`, `b 1 c h w` in [0, 1].

        Raises `ValueError` if it is older than the horizon.
        """
        back = self.frames - frame
        if not 0 < back <= len(self.anchors):
            raise ValueError(
                f"there are no pixels of latent frame {frame}, only of the newest {len(self.anchors)} of "
                f"{self.frames}; start the history with a horizon of at least {back}"
            )
        return self.anchors[-back]()


@dataclass(frozen=True, slots=True)
class ScenePosition:
    """Position of a block among prompts and cuts.

    `prompt`: first latent frame under its prompt; 0 for the first prompt. `cuts`: number of cuts before it.
    `start`: index in the history of its scene's first block. `cut`: whether it begins the scene.
    """

    prompt: int = 0
    cuts: int = 0
    start: int = 0
    cut: bool = False


def scene_of(blocks: Sequence[Block], condition: Condition) -> ScenePosition:
    """Return the scene position of the block that follows `blocks`, under `condition`."""
    prompt = cuts = start = 0
    shown = [*(block.condition for block in blocks), condition]
    for place, (before, after) in enumerate(pairwise(shown), 1):
        if before is not after:
            prompt = blocks[place - 1].span.stop
            cuts, start = (cuts + 1, place) if after.cut else (cuts, start)
    return ScenePosition(prompt, cuts, start, bool(start) and start == len(blocks))
