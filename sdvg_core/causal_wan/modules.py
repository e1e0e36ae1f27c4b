"""The module tree of a Wan 2.1 transformer, without a forward pass (see `forward`).

Attributes have the names of checkpoints and of ComfyUI's own Wan model, so that one forward serves both trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.inputs import CONTROL_CHANNELS
from .config import WanConfig


class PatchEmbedding(nn.Conv3d):
    """The convolution from latents of any float dtype to tokens in its own dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """Embed `b c t h w`."""
        return super().forward(input.to(self.weight.dtype))


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis; statistics are always float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, cast back to the input's dtype, then multiply by the weight."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


class Attention(nn.Module):
    """The projections of one attention. q and k are normed over the full width, before the split into heads."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_dim = config.head_dim
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)


class WanBlock(nn.Module):
    """One transformer block. `norm3` is the norm before cross-attention, as in the checkpoints."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        dim = config.dim
        self.norm1 = nn.LayerNorm(dim, config.eps, elementwise_affine=False)
        self.self_attn = Attention(config)
        self.norm3 = nn.LayerNorm(dim, config.eps)
        self.cross_attn = Attention(config)
        self.norm2 = nn.LayerNorm(dim, config.eps, elementwise_affine=False)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(config.ffn_dim, dim)
        )
        self.modulation = nn.Parameter(torch.zeros(1, 6, dim))

    def forward(self, fn: Callable[..., Any], *inputs: Any) -> Any:
        """Run `fn(self, *inputs)` inside `forward`, so that hooks can move the weights."""
        return fn(self, *inputs)


class ControlBlock(WanBlock):
    """A control block. `before_proj`, of the first only: projects the control. `after_proj`: projects the hint."""

    def __init__(self, config: WanConfig, *, first: bool) -> None:
        super().__init__(config)
        if first:
            self.before_proj = nn.Linear(config.dim, config.dim)
        self.after_proj = nn.Linear(config.dim, config.dim)


class ControlTree(nn.Module):
    """The control module of VACE for a transformer of these sizes: patch embedding and blocks."""

    def __init__(self, config: WanConfig, blocks: int) -> None:
        super().__init__()
        self.vace_patch_embedding = PatchEmbedding(
            CONTROL_CHANNELS, config.dim, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.vace_blocks = nn.ModuleList(ControlBlock(config, first=not number) for number in range(blocks))


class WanHead(nn.Module):
    """The projection of tokens to the values of a patch; `out_dim` varies fastest."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        t, h, w = config.patch_size
        self.norm = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.head = nn.Linear(config.dim, t * h * w * config.out_dim)
        self.modulation = nn.Parameter(torch.zeros(1, 2, config.dim))


class WanTree(nn.Module):
    """The modules of one transformer, without a forward pass. Has the sizes of `WanConfig` as attributes."""

    text_len: int

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        dim = config.dim
        # ComfyUI's model has its sizes under the same names.
        for field in fields(config):
            setattr(self, field.name, getattr(config, field.name))
        self.head_dim = config.head_dim
        self.patch_embedding = PatchEmbedding(
            config.in_dim, dim, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(WanBlock(config) for _ in range(config.num_layers))
        self.head = WanHead(config)
