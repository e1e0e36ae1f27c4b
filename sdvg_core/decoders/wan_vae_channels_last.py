"""The Wan VAE's weights in the memory order that half-precision convolutions on a GPU prefer: channels last."""

from __future__ import annotations

import torch
from torch import nn

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By the number of axes of a weight: 2-D and 3-D convolutions."""


def make_channels_last(vae: nn.Module) -> None:
    """Store the weights of a VAE's convolutions channels last; their outputs then have the same order."""
    for module in vae.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            weight = module.weight.data
            module.weight.data = weight.contiguous(memory_format=FORMATS[weight.ndim])
