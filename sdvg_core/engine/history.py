"""What has been committed so far, as a value. `history.commit(block)` accepts a block; rejecting does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .types import Block, Condition

Anchor = Callable[[], Tensor]
"""Returns the last pixel frame that a latent frame shows, `b 1 c h w`; always the same object."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The committed blocks, the pixel frames that context needs, and the decoder's state: all the next one needs.

    `anchors`: of the newest latent frames, oldest first. At most `horizon` are kept, so a long clip holds no more
    pixels than a short one. `decode_state`: a `DecodeState`, after the newest block; None before the first one, or
    if no block will be decoded.
    """

    blocks: tuple[Block, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    horizon: int = 0
    decode_state: Any = None

    @property
    def frames(self) -> int:
        """Committed latent frames."""
        return self.blocks[-1].span.stop if self.blocks else 0

    def commit(self, block: Block, anchors: tuple[Anchor, ...] = (), decode_state: Any = None) -> History:
        """Return the history with `block` appended. `anchors`: one for each of its latent frames.

        Raises `ValueError` if the block does not start where the history ends.
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
        # Drafter and target may be on two devices, and a clip to continue comes from the host.
        return parts[0] if len(parts) == 1 else torch.cat([part.to(parts[-1]) for part in parts], dim=2)

    def anchor(self, frame: int) -> Tensor:
        """Return the last pixel frame that latent frame `frame` shows, `b 1 c h w` in [0, 1].

        Raises `ValueError` if the frame is older than the horizon: the horizon was set too short.
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
    """Where a block stands among prompts and cuts.

    `prompt`: the first latent frame under its prompt; 0 if no prompt came before. `cuts`: how many scenes ended
    before it; `start`: the place in the history of its scene's first block. `cut`: whether it begins the scene.
    """

    prompt: int = 0
    cuts: int = 0
    start: int = 0
    cut: bool = False


def scene_of(blocks: Sequence[Block], condition: Condition) -> ScenePosition:
    """Return the scene of the block that follows `blocks`, under its condition."""
    prompt = cuts = start = 0
    shown = [*(block.condition for block in blocks), condition]
    for place, (before, after) in enumerate(pairwise(shown), 1):
        if before is not after:
            prompt = blocks[place - 1].span.stop
            cuts, start = (cuts + 1, place) if after.cut else (cuts, start)
    return ScenePosition(prompt, cuts, start, bool(start) and start == len(blocks))
