"""The operations of the causal forward that are not modules: casts, attention, time and position embeddings.

A host may pass a subclass of `TorchOps` (another attention kernel, its own casting rules).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..devices.execution import float64_device
from .backends import SDPA, AttentionBackend

ROPE_BASE = 10000.0
TIME_BASE = 10000.0
Grid = tuple[int, int, int]


class TorchOps:
    """Injected operations, here in plain torch with rotary positions in at least float32.

    `dtype`: of activations, and of the K/V cache unless set otherwise.
    """

    def __init__(self, dtype: torch.dtype, backend: AttentionBackend = SDPA) -> None:
        self.dtype = dtype
        self.backend = backend

    def cast(self, parameter: Tensor, like: Tensor) -> Tensor:
        """Return a bare parameter in the dtype and on the device of `like`."""
        return parameter.to(like.device, like.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend without a mask: q `b l n d`, k and v `b m n d`, result `b l (n d)`."""
        return self.backend(q, k, v).flatten(2)

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend for an attention module, for which a host may have another kernel."""
        return self.attention(q, k, v)

    def sinusoid(self, times: Tensor, width: int) -> Tensor:
        """Return cosines, then sines, of each time (0 to 1000) at `width / 2` frequencies, in the times' dtype."""
        half = width // 2
        steps = torch.arange(half, dtype=torch.float64, device=times.device) / half
        angles = times[..., None] * torch.exp(-math.log(TIME_BASE) * steps)
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def rope(self, tree: Any, first: int, grid: Grid, device: torch.device) -> Any:
        """Return the rotary table of `grid` = (t, h, w) tokens whose first latent frame is at position `first`.

        As cosines and sines, each `l 1 (d/2)` float32.
        """
        angles = rope_angles(tree.dim // tree.num_heads, first, grid, float64_device(device))[:, None]
        return angles.cos().float().to(device), angles.sin().float().to(device)

    def rotate(self, x: Tensor, rope: Any) -> Tensor:
        """Rotate `b l n d` by the table: here each adjacent pair of channels by its angle, in float32."""
        cos, sin = rope
        even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)


def rope_angles(head_dim: int, first: int, grid: tuple[int, int, int], device: torch.device | str) -> Tensor:
    """Return the rotary angles of a grid of tokens, `(t h w) (d/2)`, float64.

    The channel pairs are split between time, height and width; time takes the remainder, so 64 pairs are split 22,
    21, 21. Positions start at `first` in time, and at 0 in height and width.
    """
    side = 2 * (head_dim // 6)
    starts = (first, 0, 0)
    parts = []
    for axis, width in enumerate((head_dim - 2 * side, side, side)):
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
        positions = torch.arange(grid[axis], dtype=torch.float64, device=device) + starts[axis]
        shape = [1, 1, 1, -1]
        shape[axis] = grid[axis]
        parts.append(torch.outer(positions, ROPE_BASE**-exponents).view(shape).expand(*grid, -1))
    return torch.cat(parts, dim=-1).flatten(0, 2)
