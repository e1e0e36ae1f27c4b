"""The network TAEHV: 2-D convolutions, and blocks that also see their own input of one time step earlier.

Inside, the frames of a batch are `(t b) c h w`: time is the slow factor of the first axis. Source of the design:
madebyollin/taehv.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Frames made of one in each of the decoder's three stages, and frames joined into one in the encoder's.
GROWTH, JOINED = (1, 2, 2), (2, 2, 1)
TEMPORAL_STRIDE, SPATIAL_STRIDE = 4, 8
FIRST_STAGE, STAGE = 3, 6
"""The number of the decoder's first layer with memory, and the number of layers of a stage."""

Widths = tuple[int, int, int, int]
Memory = tuple[Tensor, ...]
"""For each block with memory, its input of the newest time step: `b c h w`."""


def _conv(inputs: int, outputs: int, *, bias: bool = True, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)


class MemoryBlock(nn.Module):
    """Adds to a frame what three convolutions see in it and in the frame before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Return `n c h w`, given as much and the same one time step earlier."""
        return F.relu(self.conv(torch.cat([x, before], dim=1)) + x)


class Grow(nn.Module):
    """Makes several frames of each; they lie one after the other in the channels of a 1x1 convolution."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.growth = growth
        self.conv = nn.Conv2d(width, width * growth, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Return `(t growth b) c h w` of `(t b) c h w`."""
        made: Tensor = self.conv(x)
        if self.growth == 1:
            return made
        return torch.cat([part for frame in made.split(batch) for part in frame.chunk(self.growth, dim=1)])


class Join(nn.Module):
    """Makes one frame of several; the inverse of `Grow` in shape."""

    def __init__(self, width: int, joined: int) -> None:
        super().__init__()
        self.joined = joined
        self.conv = nn.Conv2d(width * joined, width, 1, bias=False)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        """Return `(t b) c h w` of `(t joined b) c h w`."""
        if self.joined > 1:
            frames = x.split(batch)
            groups = range(0, len(frames), self.joined)
            x = torch.cat([torch.cat(frames[first : first + self.joined], dim=1) for first in groups])
        made: Tensor = self.conv(x)
        return made


class Taehv(nn.Module):
    """Both halves under the published names of their weights.

    `decoder`, `encoder`: their widths in order; no encoder is None, as in a file of the decoder alone.
    """

    def __init__(self, latent_channels: int, decoder: Widths, encoder: Widths | None) -> None:
        super().__init__()
        self.latent_channels, self.widths = latent_channels, decoder
        self.decoder = _decoder(latent_channels, decoder)
        self.encoder = _encoder(latent_channels, encoder) if encoder else None


def _decoder(latent_channels: int, widths: Widths) -> nn.Sequential:
    # The first layer limits the latents, which the codec does in float32.
    layers: list[nn.Module] = [nn.Identity(), _conv(latent_channels, widths[0]), nn.ReLU()]
    for width, following, growth in zip(widths, widths[1:], GROWTH, strict=False):
        layers += [MemoryBlock(width) for _ in range(3)]
        layers += [nn.Upsample(scale_factor=2), Grow(width, growth), _conv(width, following, bias=False)]
    return nn.Sequential(*layers, nn.ReLU(), _conv(widths[-1], 3))


def _encoder(latent_channels: int, widths: Widths) -> nn.Sequential:
    layers: list[nn.Module] = [_conv(3, widths[0]), nn.ReLU()]
    for width, following, joined in zip(widths, widths[1:], JOINED, strict=False):
        layers += [Join(width, joined), _conv(width, following, bias=False, stride=2)]
        layers += [MemoryBlock(following) for _ in range(3)]
    return nn.Sequential(*layers, _conv(widths[-1], latent_channels))


def run_half(half: nn.Sequential, x: Tensor, memory: Memory, batch: int) -> tuple[Tensor, Memory]:
    """Send `(t b) c h w` through the encoder or the decoder; return what comes out, and the next memory.

    Nothing that is given is written to.
    """
    kept: list[Tensor] = []
    for layer in half:
        if isinstance(layer, MemoryBlock):
            past = memory[len(kept)]
            before = past if len(x) == batch else torch.cat([past, x[:-batch]])
            kept.append(x[-batch:])
            x = layer(x, before)
        elif isinstance(layer, Grow | Join):
            x = layer(x, batch)
        else:
            x = layer(x)
    return x, tuple(kept)


def blank_memory(half: nn.Sequential, x: Tensor, batch: int) -> Memory:
    """Return the memory at a clip's start, which is zero, for inputs like `(t b) c h w`."""
    height, width = x.shape[-2:]
    memory = []
    for layer in half:
        if isinstance(layer, nn.Upsample):
            height, width = 2 * height, 2 * width
        elif isinstance(layer, nn.Conv2d):
            height, width = height // layer.stride[0], width // layer.stride[1]
        elif isinstance(layer, MemoryBlock):
            memory.append(x.new_zeros(batch, layer.width, height, width))
    return tuple(memory)
