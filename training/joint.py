"""A training step as one fixed chain of kernels, so that a GPU can replay it without waiting for Python.

The layers are the engine's own (sdvg_core.causal_wan.forward). Context and block go through them side by side, six
latent frames with a timestep each; a mask keeps the context from seeing the block. It is the engine's two passes
with half of the launches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdvg_core.causal_wan.attention import TorchOps
from sdvg_core.causal_wan.cache import Place
from sdvg_core.causal_wan.forward import (
    PLAIN,
    Pass,
    Stages,
    _after,
    _before,
    _between,
    _layer,
    _modulated,
    _unpatchify,
    project_text,
    token_grid,
)
from sdvg_core.causal_wan.modules import WanTree

from .causal import BLOCK, SCHEDULE
from .train_transformer import weights_of

TOKENS = 39
"""Of the longest prompt, and some more; with the one for the padding, 40 keys."""


class JointOps(TorchOps):
    """Plain torch, and two masks: `text` of the prompts' keys, `b 1 1 m`, `blocks` of the latents', `b 1 l l`."""

    def __init__(self, text: Tensor, blocks: Tensor) -> None:
        super().__init__(torch.float32)
        self._text, self._blocks = text, blocks

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend, to the prompt with the weight of its padding and to the latents that are in sight."""
        bias = (self._text if k.shape[1] == self._text.shape[-1] else self._blocks).to(v.dtype)
        q, k, v = (x.to(v.dtype).transpose(1, 2) for x in (q, k, v))
        bias = bias.expand(-1, -1, q.shape[2], -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


class NoCache:
    """Hands back what the same layer just wrote; stands in for `KVCache`."""

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        self._kv = k, v

    def read(self, layer: int, visible: int) -> tuple[Tensor, Tensor]:
        return self._kv


def side_by_side(
    tree: Any, context: Tensor, x: Tensor, times: Tensor, embedding: Tensor, ops: JointOps, stages: Stages = PLAIN
) -> Tensor:
    """Predict the velocity of blocks `x`, `b c 3 h w`, at a timestep each, `b`, after clean contexts like them."""
    both = torch.cat((context, x), dim=2)
    rope = ops.rope(tree, 0, token_grid(tree, both.shape[2:]), x.device)
    slots = tuple(range(2 * BLOCK))
    here: Any = Pass(
        project_text(tree, embedding, ops),
        NoCache(),
        Place(0, slots, 2 * BLOCK),
        rope,
        ops,
        stages,  # type: ignore[arg-type]
    )
    h = tree.patch_embedding(both).float().flatten(3).permute(0, 2, 3, 1).contiguous()  # b t s d
    at = torch.cat((torch.zeros_like(times)[:, None].expand(-1, BLOCK), times[:, None].expand(-1, BLOCK)), dim=1)
    e = tree.time_embedding(ops.sinusoid(at.double(), tree.freq_dim).float())
    e6 = tree.time_projection(e).unflatten(-1, (6, -1))
    for layer, block in enumerate(tree.blocks):
        h = _layer(block, layer, h, e6, here)
    h, e = h[:, BLOCK:], e[:, BLOCK:]
    shift, scale = (tree.head.modulation[:, None] + e[:, :, None]).chunk(2, dim=2)
    h = tree.head.head(_modulated(tree.head.norm, h, shift, scale))
    return _unpatchify(tree, h.flatten(1, 2), token_grid(tree, x.shape[2:])).float()


class Muon:
    """torch's Muon (match_rms_adamw, weight decay 0.01) over stacks of equal matrices; the rate is a tensor."""

    def __init__(self, matrices: Sequence[nn.Parameter]) -> None:
        shapes = dict.fromkeys(w.shape for w in matrices)
        self._groups = [[w for w in matrices if w.shape == shape] for shape in shapes]
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups]

    @torch.no_grad()
    def step(self, rate: Tensor) -> None:
        for group, momentum in zip(self._groups, self.momenta, strict=True):
            slopes = torch.stack([w.grad for w in group if w.grad is not None])
            momentum.lerp_(slopes, 0.05)
            x = slopes.lerp(momentum, 0.95).bfloat16()
            tall = x.shape[1] > x.shape[2]
            x = x.mT if tall else x
            x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
            for _ in range(5):
                gram = x @ x.mT
                x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            x = (x.mT if tall else x).float() * (rate * 0.2 * math.sqrt(max(group[0].shape)))
            for w, change in zip(group, x, strict=True):
                w.mul_(1 - 0.01 * rate).sub_(change)


class Trainer:
    """A model, its average, and the buffers of a batch: `rows` of samples, of which the last `firsts` begin a clip.

    Row r is at timestep r modulo 4. `given`: whether the first blocks' noisy inputs are given, and not made.
    """

    def __init__(self, tree: WanTree, rows: int, firsts: int, *, given: bool, peak: float, compiled: bool) -> None:
        self.tree, self.average, self.peak, self.given = (
            tree,
            copy.deepcopy(tree).requires_grad_(False),
            peak,
            given,
        )
        device = next(tree.parameters()).device
        self._kind = device.type
        self.context, self.label, self.noisy = (torch.zeros(rows, 16, BLOCK, 8, 8, device=device) for _ in range(3))
        self.embedding = torch.zeros(rows, TOKENS + 1, tree.text_dim, device=device)
        self.text = torch.zeros(rows, 1, 1, TOKENS + 1, device=device)
        self.weights = torch.ones(rows, 1, BLOCK, 8, 8, device=device)
        self.number = torch.arange(rows, device=device) % len(SCHEDULE)
        self._times = torch.tensor([step.timestep for step in SCHEDULE], device=device)[self.number]
        self._sigmas = torch.tensor([step.sigma for step in SCHEDULE], device=device)[self.number].view(
            -1, 1, 1, 1, 1
        )
        self._first = (torch.arange(rows, device=device) >= rows - firsts).view(-1, 1, 1, 1)
        half = 16 * BLOCK
        later = torch.arange(2 * half, device=device) >= half
        hidden = (~later[:, None] & later) | (later[:, None] & ~later & self._first)
        self._ops = JointOps(self.text, torch.zeros(hidden.shape, device=device).masked_fill(hidden, -torch.inf))
        self._stages = PLAIN
        if compiled:
            before, between, after = (torch.compile(stage, dynamic=False) for stage in (_before, _between, _after))
            self._stages = Stages(before=before, between=between, after=after)
        self.rate = torch.zeros((), device=device)
        matrices = [w for name, w in tree.named_parameters() if name.startswith("blocks.") and w.ndim == 2]
        known = {id(w) for w in matrices}
        others = [w for w in tree.parameters() if id(w) not in known]
        cuda = self._kind == "cuda"
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(
            others, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.01, capturable=cuda, foreach=cuda
        )
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def velocity(self, x: Tensor, times: Tensor) -> Tensor:
        """Predict the velocity of the batch's blocks at a timestep each."""
        return side_by_side(self.tree, self.context, x, times, self.embedding, self._ops, self._stages)

    def loss(self, own: bool) -> Tensor:
        """Return the loss over the batch. `own`: noisy inputs are made of the model's own estimates."""
        base = self.label
        if own:
            x = torch.randn_like(base)
            with torch.no_grad():
                for n, (step, following) in enumerate(pairwise(SCHEDULE)):
                    clean = x - step.sigma * self.velocity(x, torch.full_like(self._times, step.timestep))
                    base = torch.where((self.number > n).view(-1, 1, 1, 1, 1), clean, base)
                    x = (1 - following.sigma) * clean + following.sigma * torch.randn_like(clean)
        x = (1 - self._sigmas) * base + self._sigmas * torch.randn_like(base)
        if self.given:
            x = torch.where(self._first[..., None], self.noisy, x)
        error = self.velocity(x, self._times) - (x - self.label) / self._sigmas
        return (self.weights * error.square().mean(dim=1, keepdim=True)).mean()

    def _once(self, own: bool) -> Tensor:
        for w in self.tree.parameters():
            w.grad = None
        with torch.autocast(self._kind, torch.bfloat16, cache_enabled=False):
            loss = self.loss(own)
        loss.backward()
        nn.utils.clip_grad_norm_(self.tree.parameters(), 1.0)
        self._muon.step(self.rate)
        self._adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.tree.parameters()), 0.002)
        return loss.detach()

    def capture(self) -> None:
        """Record the two kinds of step, if the device can; the rate must be 0, and the buffers hold a batch."""
        if self._kind != "cuda":
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for own in (False, True, False, True, False, True):
                self._once(own)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        for own in (False, True):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = self._once(own)
            self._graphs[own] = graph, loss
        torch.cuda.synchronize()

    def make_plain(self) -> None:
        """Go on without compiled stages and recorded steps, as on a CPU."""
        self._graphs, self._stages = {}, PLAIN

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the average's weights."""
        return {name: w.clone() for name, w in self.average.state_dict().items()}

    @torch.no_grad()
    def go_back(self, state: dict[str, Tensor]) -> None:
        """Begin again from such a copy, more slowly and with nothing remembered."""
        self.tree.load_state_dict(state)
        self.average.load_state_dict(state)
        self.peak *= 0.5
        for momentum in self._muon.momenta:
            momentum.zero_()
        for kept in self._adam.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                kept[name].zero_()

    def step(self, own: bool) -> Tensor:
        """Take one step and return its loss, which the next step of its kind may overwrite."""
        if own not in self._graphs:
            return self._once(own)
        graph, loss = self._graphs[own]
        graph.replay()
        return loss

    def fill(self, rows: slice, prompts: tuple[Tensor, Tensor], context: Tensor | None, label: Tensor) -> None:
        """Put samples into some rows of the batch: embeddings `b m c` with which of them are real, and latents."""
        embedding, real = prompts
        self.embedding[rows, :TOKENS] = embedding.float() * real[..., None]
        self.text[rows, 0, 0, :TOKENS] = torch.where(real, 0.0, -torch.inf)
        self.text[rows, 0, 0, TOKENS] = (self.tree.text_len - real.sum(dim=1)).float().log()
        if context is not None:
            self.context[rows] = context.float()
        self.label[rows] = label.float()
        self.weights[rows] = weights_of(self.label[rows])
