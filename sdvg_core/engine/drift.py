"""How far a block's colours are from those its scene began with, and a hold on them.

Per channel, mean and deviation of the latents: causal models that run for long drift in both.
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
    """Return the latents of the first block of the next block's scene, to measure drift from; None without one.

    The clip's first block does not count: its first latent frame holds only one pixel frame, so all others are far.
    """
    start = scene_of(history.blocks, condition).start
    return next((block.latents for block in history.blocks[start:] if block.span.start), None)


def colours(latents: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel of `b c t h w`, each `1 c 1 1 1` float32."""
    wide = latents.float()
    mean = wide.mean(dim=(0, 2, 3, 4), keepdim=True)
    return mean, (wide - mean).square().mean(dim=(0, 2, 3, 4), keepdim=True).sqrt().clamp_min(LEAST_DEVIATION)


def drift_of(block: Block, history: History) -> Tensor | None:
    """Return the drift of a block after `history`, on its device; None if it is the first to measure from."""
    first = first_of_scene(history, block.condition)
    return None if first is None else drift(block.latents, first)


def drift(latents: Tensor, first: Tensor) -> Tensor:
    """Return the distance of a block from the `first` of its scene, both `b c t h w`.

    The root mean square over channels, in deviations of the first block: 0 if each has its mean and deviation.
    """
    mean, deviation = colours(latents)
    mean_1, deviation_1 = colours(first.to(latents.device))
    distance = ((mean - mean_1) / deviation_1).square() + (deviation / deviation_1 - 1).square()
    return distance.mean().sqrt()


class ColourHold(WrappedGenerator):
    """Pulls each channel of a block towards its mean and deviation in the first block of the scene.

    `hold`: 0 changes nothing, 1 pulls all the way.
    """

    def __init__(self, inner: BlockGenerator, hold: float) -> None:
        super().__init__(inner)
        self.hold = hold

    def generate(self, call: BlockCall) -> Generated:
        """Generate the block with `inner`, and pull it back. Steps to hand over stay as they are."""
        made = self.inner.generate(call)
        first = first_of_scene(call.history, call.condition)
        if first is None or call.stop is not None:
            return made
        mean, deviation = colours(made.latents)
        mean_1, deviation_1 = colours(first.to(made.latents.device))
        scale = 1 + self.hold * (deviation_1 / deviation - 1)
        held = (made.latents.float() - mean) * scale + mean + self.hold * (mean_1 - mean)
        return replace(made, predictions=(*made.predictions[:-1], held.to(made.latents.dtype)))
