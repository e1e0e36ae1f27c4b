"""The engine's own forward pass, over batches and with gradients.

Training calls the functions that generate videos (sdvg_core.causal_wan.forward), so the two can not come apart.
What differs is handed in: a cache that is not written into, and attention to prompts without their padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import CacheSlots
from sdvg_core.causal_wan.forward import (
    PLAIN_STAGES,
    Pass,
    Stages,
    TextKV,
    context_pass,
    denoise_pass,
    project_text,
    token_grid,
)
from sdvg_core.causal_wan.generator import predict_clean, renoise
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.settings.schedules import Schedule, get_schedule

BLOCK = 3
BLOCKS = 9
FRAMES = 4 * (BLOCKS * BLOCK - 1) + 1
"""Pixel frames of a clip of so many blocks."""

SCHEDULE = get_schedule("four-step")


class TensorCache:
    """Keys and values of a batch, by layer and first slot; stands in for `KVCache`, and nothing is written into."""

    def __init__(self, layers: Sequence[dict[int, tuple[Tensor, Tensor]]]) -> None:
        self._layers = layers

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Keep what one pass wrote into consecutive slots, in place of what an earlier one did."""
        self._layers[layer][slots[0]] = (k, v)

    def read(self, layer: int, visible: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the keys and values in slots 0 to `visible` (exclusive)."""
        assert isinstance(visible, int)
        seen = [kv for first, kv in sorted(self._layers[layer].items()) if first < visible]
        return torch.cat([k for k, _ in seen], dim=1), torch.cat([v for _, v in seen], dim=1)


class TrainingOps(TorchOps):
    """Plain torch; prompts come without their padding, which one key stands for.

    The engine attends to 512 text tokens, and those after the prompt are all the same. So one of them, its logit
    raised by the logarithm of their number, is exactly all of them.
    """

    def __init__(self, text_len: int, real: Tensor) -> None:
        super().__init__(torch.float32)
        padding = text_len - real.sum(dim=1)
        weight = torch.where(real, 0.0, -torch.inf)
        self._bias = torch.cat((weight, padding.log()[:, None]), dim=1)[:, None, None]

    def rope(self, tree: Any, first: int, grid: tuple[int, int, int], device: torch.device) -> Tensor:
        """Return the rotary table as complex numbers: a rotation takes a quarter of the time on a CPU."""
        cos, sin = super().rope(tree, first, grid, device)
        return torch.complex(cos, sin)

    def rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        """Rotate `b l n d` by the table."""
        turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * rope
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; to a prompt, which has fewer keys than any block has tokens, with the weight of its padding."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        # In the open: for so few tokens the fused kernel's backward pass takes several times as long on a CPU.
        logits = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        if k.shape[2] == self._bias.shape[-1]:
            logits = logits + self._bias
        return (F.softmax(logits.float(), dim=-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)


class Prompted:
    """A model, a batch of prompts, and the context of each sample, ready to denoise blocks."""

    kind = TrainingOps

    def __init__(self, tree: WanTree, embedding: Tensor, real: Tensor, stages: Stages = PLAIN_STAGES) -> None:
        padded = torch.cat((embedding * real[..., None], torch.zeros_like(embedding[:, :1])), dim=1)
        self.tree = tree
        self.ops = self.kind(tree.text_len, real)
        self.stages = stages
        self.text: TextKV = project_text(tree, padded, self.ops)
        self.cache = TensorCache([{} for _ in tree.blocks])
        self.place = CacheSlots(0, tuple(range(BLOCK)), BLOCK)

    def see(self, context: Tensor) -> Prompted:
        """Take in clean latents `b c 3 h w`, the context of the block to come."""
        rope = self.ops.rope(self.tree, 0, token_grid(self.tree, context.shape[2:]), context.device)
        context_pass(self.tree, context, Pass(self.text, self.cache, self.place, rope, self.ops, self.stages))
        self.place = CacheSlots(BLOCK, tuple(range(BLOCK, 2 * BLOCK)), 2 * BLOCK)
        return self

    def velocity(self, x: Tensor, timestep: float) -> Tensor:
        """Predict the velocity of noisy blocks `b c 3 h w` at one timestep."""
        rope = self.ops.rope(self.tree, self.place.position, token_grid(self.tree, x.shape[2:]), x.device)
        return denoise_pass(
            self.tree, x, timestep, Pass(self.text, self.cache, self.place, rope, self.ops, self.stages)
        )

    @torch.no_grad()
    def sample(self, noises: Sequence[Tensor], schedule: Schedule = SCHEDULE) -> Tensor:
        """Denoise blocks from pure noise in as many steps as there are noises, the first of a schedule."""
        x = clean = noises[0]
        for number, (step, noise) in enumerate(zip(schedule, noises, strict=False)):
            if number:
                x = renoise(clean, noise, step.sigma)
            clean = predict_clean(x, self.velocity(x, step.timestep).float(), step.sigma)
        return clean
