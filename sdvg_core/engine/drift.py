"""Measure the colour drift of a block from the start of its scene, and hold colours against it.

Drift is measured by mean and deviation of each latent channel, both of which drift in long runs of causal models.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .history import History, scene_of
from .inputs import BlockCall
from .protocols import BlockGenerator, WrappedGenerator
from .types import Block, Condition, Generated

LEAST_DEVIATION = 1e-6


def first_of_scene(history: History, condition: Condition) -> Tensor | None:
    """Return the latents of the first block in the scene of the next block, or None if there is none.

    Skip the clip's first block, whose first latent frame holds only one pixel frame and is unlike all others.
    """
    start = scene_of(history.blocks, condition).start
    return next((block.latents for block in history.blocks[start:] if block.span.start), None)


def colours(latents: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of `b c t h w`, each `1 c 1 1 1` float32."""
    wide = latents.float()
    mean = wide.mean(dim=(0, 2, 3, 4), keepdim=True)
    return mean, (wide - mean).square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt().clamp_min(LEAST_DEVIATION)


def drift_of(block: Block, history: History) -> Tensor | None:
    """Return the drift of a block after `history`, on its device; None for the first of its scene."""
    first = first_of_scene(history, block.condition)
    return None if first is None else drift(block.latents, first)


def drift(latents: Tensor, first: Tensor) -> Tensor:
    """Return the distance of a block from the `first` of its scene, both `b c t h w`.

    Root mean square over channels of the changes in mean and deviation, in deviations of the first block.
    """
    mean, deviation = colours(latents)
    mean_1, deviation_1 = colours(first.to(latents.device))
    distance = ((mean - mean_1) / deviation_1).square() + (deviation / deviation_1 - 1).square()
    return distance.mean().sqrt()


class ColourHold(WrappedGenerator):
    """Pulls mean and deviation of each channel to those of the scene's first block. `hold`: 0 none, 1 fully."""

    def __init__(self, inner: BlockGenerator, hold: float) -> None:
        super().__init__(inner)
        self.hold = hold

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block with `inner`, and pull its colours. Predictions to hand over are unchanged."""
        made = self.inner.generate(call)
        first = first_of_scene(call.history, call.condition)
        if first is None or call.stop is not None:
            return made
        mean, deviation = colours(made.latents)
        mean_1, deviation_1 = colours(first.to(made.latents.device))
        scale = 1 + self.hold * (deviation_1 / deviation - 1)
        held = (made.latents.float() - mean) * scale + mean + self.hold * (mean_1 - mean)
        return replace(made, predictions=(*made.predictions[:-1], held.to(made.latents.dtype)))
