"""The Wan VAE's layers in an order of work that suits a CPU, for the miniature widths of the pocket set.

PyTorch has no fast 3-D convolution for so few channels, and its vector norm is slow across channels. Both
replacements add in another order, so pixels differ from diffusers' own layers by rounding, about 1e-6 of the range.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .wan_vae_planes import planar_conv

TINY = 1e-12
"""The smallest length to divide by."""


class LeanNorm(nn.Module):
    """Scales every pixel's channels to one length; replaces one of diffusers' norms."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.gamma, self.bias, self._scale = norm.gamma, norm.bias, norm.scale

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `b c ...` over the channels."""
        squares = x.square().sum(dim=1, keepdim=True).clamp_min(TINY**2)
        scaled: Tensor = x * (squares.rsqrt() * self._scale) * self.gamma + self.bias
        return scaled


def make_lean(vae: nn.Module) -> None:
    """Switch a diffusers VAE to this order of work."""
    for module in list(vae.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "WanRMS_norm":
                setattr(module, name, LeanNorm(child))
        if isinstance(module, nn.Conv3d) and module.kernel_size == (3, 3, 3) and module.stride == (1, 1, 1):
            # Its own forward pads and adds the frames before, and then calls this.
            conv: Any = module
            conv._conv_forward = planar_conv
