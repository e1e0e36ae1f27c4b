"""The engine's own forward pass, over batches and with gradients.

Training calls the functions that generate videos (sdvg_core.causal_wan.forward), so the two can not come apart.
What differs is handed in: a cache that is not written into, and attention to prompts without their padding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sdvg_core.causal_wan.attention import ROPE_BASE, TorchOps
from sdvg_core.causal_wan.cache import CacheSlots
from sdvg_core.causal_wan.config import WanConfig
from sdvg_core.causal_wan.forward import (
    PLAIN,
    Pass,
    Stages,
    TextKV,
    context_pass,
    denoise_pass,
    project_text,
    token_grid,
)
from sdvg_core.causal_wan.modules import WanTree
from sdvg_core.causal_wan.schedule import Schedule, get_schedule, predict_clean, renoise

BLOCK = 3
LEFT, UP, BEFORE = (0, 0, -1), (0, -1, 0), (-1, 0, 0)
LOOKS = {
    1: (((0, 0), LEFT, 0), ((1, 0), UP, 1)),
    2: (((0, 0), LEFT, 0), ((0, 1), UP, 1), ((1, 0), BEFORE, 0), ((1, 1), LEFT, None), ((2, 0), UP, None)),
}
"""By the number of heads: the (layer, head) that begins by looking a step away (in time, down, across), and the
half of the noise that it hands on from there."""

SCHEDULE = get_schedule("four-step")


class TensorCache:
    """Keys and values of a batch, by layer and first slot; stands in for `KVCache`, and nothing is written into."""

    def __init__(self, layers: Sequence[dict[int, tuple[Tensor, Tensor]]]) -> None:
        self._layers = layers

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Keep what one pass wrote into consecutive slots, in place of what an earlier one did."""
        self._layers[layer][slots[0]] = (k, v)

    def read(self, layer: int, visible: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values in slots 0 to `visible` (exclusive)."""
        seen = [kv for first, kv in sorted(self._layers[layer].items()) if first < visible]
        return torch.cat([k for k, _ in seen], dim=1), torch.cat([v for _, v in seen], dim=1)

    def rows(self, here: slice) -> TensorCache:
        """Return that of some of the batch's samples."""
        return TensorCache([{slot: (k[here], v[here]) for slot, (k, v) in layer.items()} for layer in self._layers])


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

    def rows(self, here: slice) -> TrainingOps:
        """Return the operations for some of the batch's samples."""
        part = copy.copy(self)
        part._bias = self._bias[here]
        return part

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

    def __init__(self, tree: WanTree, embedding: Tensor, real: Tensor, stages: Stages = PLAIN) -> None:
        padded = torch.cat((embedding * real[..., None], torch.zeros_like(embedding[:, :1])), dim=1)
        self.tree, self.ops, self.stages = tree, self.kind(tree.text_len, real), stages
        self.text: TextKV = project_text(tree, padded, self.ops)
        self.cache = TensorCache([{} for _ in tree.blocks])
        self.place = CacheSlots(0, tuple(range(BLOCK)), BLOCK)

    def see(self, context: Tensor) -> Prompted:
        """Take in clean latents `b c 3 h w`, the context of the block to come."""
        rope = self.ops.rope(self.tree, 0, token_grid(self.tree, context.shape[2:]), context.device)
        context_pass(self.tree, context, Pass(self.text, self.cache, self.place, rope, self.ops, self.stages))
        self.place = CacheSlots(BLOCK, tuple(range(BLOCK, 2 * BLOCK)), 2 * BLOCK)
        return self

    def rows(self, here: slice) -> Prompted:
        """Return some of the samples."""
        part = copy.copy(self)
        part.ops, part.cache = self.ops.rows(here), self.cache.rows(here)
        part.text = tuple((k[here], v[here]) for k, v in self.text)
        return part

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


def build(config: WanConfig) -> WanTree:
    """Return an untrained transformer: small weights, and a head that begins at nothing."""
    tree = WanTree(config)
    for name, w in tree.named_parameters():
        if w.dim() >= 2 and "modulation" not in name:
            torch.nn.init.normal_(w, std=1 / math.sqrt(w[0].numel()))
        elif "norm" not in name:
            torch.nn.init.zeros_(w)
    for name, w in tree.named_parameters():
        if name.endswith(("self_attn.o.weight", "cross_attn.o.weight", "ffn.2.weight")):
            w.data /= math.sqrt(2 * config.num_layers)
        if "modulation" in name:
            torch.nn.init.normal_(w, std=0.02)
            # Gates begin half open, so that gradients reach every layer from the first step on.
            if w.shape[1] == 6:
                w.data[:, [2, 5]] += 0.5
    noise = _keep_noise_apart(tree)
    for (layer, head), step, half in LOOKS[min(config.num_heads, 2)]:
        _look_at(tree.blocks[layer].self_attn, head, step, half, noise)
    torch.nn.init.zeros_(tree.head.head.weight)
    torch.nn.init.zeros_(tree.time_projection[1].weight)
    return tree


@torch.no_grad()
def _keep_noise_apart(tree: WanTree) -> int:
    """Let the first channels begin as the token's own values; return their number, 64 for a patch of 2 x 2."""
    weight = tree.patch_embedding.weight.flatten(1)
    noise = weight.shape[1]
    weight *= 0.1
    weight[:noise] = torch.eye(noise)
    return noise


@torch.no_grad()
def _look_at(attention: Any, head: int, step: tuple[int, int, int], half: int | None, noise: int) -> None:
    """Let a head begin by looking at the token a step away, or at its own where there is none.

    `noise`: channels that hold the token's own values.

    Rotary positions tell how far apart two tokens are and nothing else. In the first step of a first block all
    tokens are noise, so none can know where in the picture it is but for this: looking past an edge, it finds its
    own noise again. Handing half of the noise on to the same channels makes them louder there, which layers after
    can hear. Training finds such heads by itself, but late (training/LOG.md).
    """
    width = attention.head_dim
    side = 2 * (width // 6)
    q, k = torch.zeros(width // 2, 2), torch.zeros(width // 2, 2)
    first = 0
    for axis, channels in enumerate((width - 2 * side, side, side)):
        # The two fastest pairs of the axis; turning the query by the step puts the best match that far away.
        for pair in range(2):
            angle = torch.tensor(ROPE_BASE ** (-2 * pair / channels) * step[axis])
            q[first + pair] = torch.stack((angle.cos(), angle.sin()))
            k[first + pair, 0] = 1.0
        first += channels // 2
    here = slice(head * width, (head + 1) * width)
    for projection, norm, bias in ((attention.q, attention.norm_q, q), (attention.k, attention.norm_k, k)):
        projection.weight[here] *= 0.3
        projection.bias[here] = bias.flatten() * math.sqrt(width / 6)
        norm.weight[here] = 1.6
    if half is not None:
        count = noise // 2
        rows, channels = slice(here.start, here.start + count), slice(half * count, (half + 1) * count)
        attention.v.weight[rows] = 0
        attention.v.weight[rows, channels] = torch.eye(count)
        attention.o.weight[:, rows] = 0
        attention.o.weight[channels, rows] = torch.eye(count)


def embed(encoder: Any, tokens: Any, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Return the embeddings `b m d` of prompts, and which of their tokens are real."""
    ids, real = tokens(prompts)
    with torch.no_grad():
        return encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state, real
