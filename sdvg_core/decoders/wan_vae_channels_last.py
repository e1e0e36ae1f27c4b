"""The Wan VAE's weights in the order in memory that half-precision convolutions on a GPU want: channels last."""

from __future__ import annotations

import torch
from torch import nn

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the axes of a weight: of planes and of clips."""


def make_channels_last(vae: nn.Module) -> None:
    """Let a VAE keep its convolutions' weights so from now on; what they make then comes out so too."""
    for module in vae.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            weight = module.weight.data
            module.weight.data = weight.contiguous(memory_format=FORMATS[weight.ndim])
