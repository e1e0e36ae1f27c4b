"""The Wan VAE's layers as 2-D layers with channels last: the form that suits tensor cores in half precision.

A causal 3-D convolution equals a 2-D one over planes that stack the channels of a frame and of the frames before
it. The products are the same but are added in another order, so pixels differ from diffusers' own layers by
rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .wan_vae_channels_last import make_channels_last

# The smallest squared length to divide by: diffusers divides by at least 1e-12.
TINY = 1e-24
# Before it had this kernel, torch squared half-precision numbers in half precision.
SQUARES_WIDE = hasattr(torch.ops.aten, "_fused_rms_norm")


def planar_conv(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int] = (0, 0)) -> Tensor:
    """Convolve `b c t h w` by `o c k h w`: each frame and the k - 1 before it as the channels of one plane.

    `padding`: zeros above and below, left and right.
    """
    depth = weight.shape[2]
    frames = x.shape[2] - depth + 1
    stacked = torch.cat([x[:, :, k : k + frames] for k in range(depth)], dim=1)
    planes = F.conv2d(
        stacked.transpose(1, 2).flatten(0, 1), weight.transpose(1, 2).flatten(1, 2), bias, padding=padding
    )
    clips: Tensor = planes.unflatten(0, (len(x), frames)).transpose(1, 2)
    return clips


class PlanarConv(nn.Conv3d):
    """Replaces one of diffusers' causal convolutions with stride 1, and uses its weights."""

    def __init__(self, conv: Any) -> None:
        super().__init__(conv.in_channels, conv.out_channels, conv.kernel_size, device="meta")
        # In this order the 2-D weights are a view, with channels last.
        ordered = conv.weight.data.permute(0, 3, 4, 2, 1).contiguous().permute(0, 4, 3, 1, 2)
        self.weight, self.bias = nn.Parameter(ordered, requires_grad=False), conv.bias
        left, _, above, _, self._before, _ = conv._padding
        self._sides = above, left

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """Convolve `b c t h w` after the frames `before` it; zeros replace missing frames."""
        given = [x] if before is None else [before, x]
        missing = self._before - sum(part.shape[2] for part in given[:-1])
        if missing:
            given.insert(0, torch.zeros_like(x[:, :, :1]).expand(-1, -1, missing, -1, -1))
        clip = torch.cat(given, dim=2) if len(given) > 1 else x
        return planar_conv(clip, self.weight, self.bias, self._sides)


class PlanarNorm(nn.Module):
    """Scales every pixel's channels to one length; replaces one of diffusers' norms."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.gamma = norm.gamma
        # If there is none, diffusers has the number 0 in its place.
        self.bias = norm.bias if torch.is_tensor(norm.bias) else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `b c ...` over the channels."""
        scaled = _rms_norm(x.movedim(1, -1), self.gamma.flatten()).movedim(-1, 1)
        return scaled if self.bias is None else scaled + self.bias


def _rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    if x.dtype.itemsize < 4 and not SQUARES_WIDE:
        return _rms_norm(x.float(), gamma.float()).to(x.dtype)
    return F.rms_norm(x, gamma.shape, gamma, TINY)


class PlanarUpsample(nn.Module):
    """Doubles a frame's sides. Copying pixels is exact in any dtype, so there is no detour through float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `b c h w` as `b c 2h 2w`, channels last."""
        small = x.contiguous(memory_format=torch.channels_last)
        doubled: Tensor = F.interpolate(small, scale_factor=2.0, mode="nearest-exact")
        return doubled


def make_planar(vae: nn.Module) -> None:
    """Switch a diffusers VAE to these layers. Convolutions with a stride in time stay unchanged."""
    make_channels_last(vae)
    for module in list(vae.modules()):
        for name, child in module.named_children():
            kind = type(child).__name__
            if kind == "WanCausalConv3d" and child.stride == (1, 1, 1):
                setattr(module, name, PlanarConv(child))
            elif kind == "WanRMS_norm":
                setattr(module, name, PlanarNorm(child))
            elif kind == "WanUpsample":
                setattr(module, name, PlanarUpsample())
