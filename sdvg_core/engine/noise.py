"""Noise as a function of its key, so that no draw depends on what was drawn or rejected before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..settings import check_fields, setting
from .types import Span

if TYPE_CHECKING:
    from torch import Tensor

MOST_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNoise:
    """Standard normal noise keyed by (seed, block, slot), and by the take if it is not the first.

    The same on every device and for every clip length.

    Slot 0 is a block's initial noise, slot i the re-noise after its i-th denoising step. Drafter and target share
    one source, so they start from the same tensors and are re-noised with the same tensors.
    """

    seed: int = setting(least=0, most=MOST_SEED)
    channels: int
    height: int
    width: int

    def __post_init__(self) -> None:
        check_fields(self)

    def draw(self, span: Span, slot: int) -> Tensor:
        """Return the noise of one slot of one block: `b c t h w`, float32, CPU."""
        import torch

        # Take 1 adds nothing to the key, so a seed keeps the videos it had before there were takes.
        take = (span.take,) if span.take > 1 else ()
        generator = torch.Generator().manual_seed(key(self.seed, span.index, slot, *take))
        return torch.randn(self.shape(span), generator=generator, dtype=torch.float32)

    def shape(self, span: Span) -> tuple[int, ...]:
        """Return the shape of a block's noise and latents, `b c t h w`."""
        return 1, self.channels, span.frames, self.height, self.width


def key(*parts: int) -> int:
    """Hash whole numbers into a generator seed of 63 bits."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
