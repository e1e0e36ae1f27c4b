"""What has been committed so far, as a value. `history.commit(block)` accepts a block; rejecting does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from .types import Block, Condition


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The committed blocks, and the pixel frames that context needs.

    `anchors`: for each of the newest latent frames, the last pixel frame it shows, `b 1 c h w`, oldest first.
    At most `horizon` are kept, so a long clip holds no more pixels than a short one.
    """

    blocks: tuple[Block, ...] = ()
    anchors: tuple[Tensor, ...] = ()
    horizon: int = 0

    @property
    def frames(self) -> int:
        """Committed latent frames."""
        return self.blocks[-1].span.stop if self.blocks else 0

    def commit(self, block: Block, anchors: tuple[Tensor, ...] = ()) -> History:
        """Return the history with `block` appended. `anchors`: one pixel frame for each of its latent frames.

        Raises `ValueError` if the block does not start where the history ends.
        """
        if block.span.start != self.frames or block.latents.shape[2] != block.span.frames:
            raise ValueError(
                f"the next block starts at latent frame {self.frames}, but got {block.latents.shape[2]} frames for "
                f"{block.span}; commit blocks in order"
            )
        kept = (self.anchors + anchors)[-self.horizon :] if self.horizon else ()
        return replace(self, blocks=(*self.blocks, block), anchors=kept)

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
        return self.anchors[-back]


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
