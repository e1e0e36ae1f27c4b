"""A transformer in training on a GPU: matrix products in bfloat16, fused attention, steps replayed as a CUDA graph.

A step of so small a model is mostly the start of its kernels: a graph starts them all at once. A CPU does the same
without a graph, slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sdvg_core.causal_wan.modules import WanTree

from .causal import Prompted, TrainingOps

WARM_UP = 3
"""Steps before one is recorded, so that everything which is made once is there."""

Batch = tuple[Tensor, ...]
Work = Callable[[], Tensor]
"""Computes from tensors that stay in their places, and returns its result in another such."""


class GpuOps(TrainingOps):
    """The same operations, by the kernels that are fast on a GPU."""

    ropes: ClassVar[dict[Any, Tensor]] = {}

    def rope(self, tree: Any, first: int, grid: tuple[int, int, int], device: torch.device) -> Tensor:
        """Return the rotary table, made once."""
        key = (first, grid, str(device), tree.dim // tree.num_heads)
        if key not in self.ropes:
            self.ropes[key] = super().rope(tree, first, grid, device)
        return self.ropes[key]

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; to a prompt in the open, as its keys are few and weighted."""
        if k.shape[1] == self._bias.shape[-1] or not q.is_cuda:
            return super().attention(q, k, v)
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cuda") else q.dtype
        q, k, v = (x.transpose(1, 2).to(dtype) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class GpuPrompted(Prompted):
    """A model with a batch of prompts, by these operations."""

    kind = GpuOps


class HalfPrompted(GpuPrompted):
    """The same with matrix products in bfloat16. Weights are cast in every pass, which a graph can record."""

    def __init__(self, tree: WanTree, embedding: Tensor, real: Tensor) -> None:
        with _in_half(embedding):
            super().__init__(tree, embedding, real)

    def see(self, context: Tensor) -> Prompted:
        """Take in clean latents."""
        with _in_half(context):
            return super().see(context)

    def velocity(self, x: Tensor, timestep: float) -> Tensor:
        """Predict the velocity of noisy blocks."""
        with _in_half(x):
            return super().velocity(x, timestep)


def _in_half(like: Tensor) -> torch.autocast:
    return torch.autocast(like.device.type, torch.bfloat16, cache_enabled=False)


class Gradients:
    """Losses of a batch, and their mean's gradient in the `grad` of the parameters, which stay in their places."""

    def __init__(self, tree: WanTree, losses: Callable[..., Tensor]) -> None:
        """`losses`: of every sample of a batch, from its tensors."""
        self._losses = losses
        self._parameters = [weight for weight in tree.parameters() if weight.requires_grad]
        self._replay: Callable[[], None] | None = None
        for weight in self._parameters:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the losses of the samples. The same tensor in every call, once a step is recorded."""
        if self._replay is None:
            return self._work(batch)
        for place, tensor in zip(self._inputs, batch, strict=True):
            place.copy_(tensor)
        self._replay()
        return self._result

    def record(self, batch: Batch, recorder: Callable[[Work], tuple[Tensor, Callable[[], None]]]) -> None:
        """Record a step of batches of this shape. `recorder`: returns the result's place and what fills it anew."""
        self._inputs = tuple(tensor.clone() for tensor in batch)
        self._result, self._replay = recorder(lambda: self._work(self._inputs))

    def forget(self) -> None:
        """Make steps without the record again."""
        self._replay = None

    def _work(self, batch: Batch) -> Tensor:
        zero_gradients(self._parameters)
        losses = self._losses(*batch)
        losses.mean().backward()
        return losses.detach()


def zero_gradients(parameters: Iterable[Tensor]) -> None:
    """Fill the gradients with zeros, in their places."""
    torch._foreach_zero_([weight.grad for weight in parameters if weight.grad is not None])


def cuda_graph(work: Work) -> tuple[Tensor, Callable[[], None]]:
    """Record work as a CUDA graph; return the place of its result, and the replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return result, graph.replay
