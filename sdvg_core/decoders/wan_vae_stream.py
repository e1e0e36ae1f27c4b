"""A pass through the Wan VAE's layers as planes, in the order of diffusers' own, with little to copy.

diffusers' pass copies what it keeps of a layer's input, joins the whole input to what was kept before, and pads it.
Here each frame goes straight into the planes that are convolved, activations and sums use the memory that is there,
and a layer's input of just two frames is kept as it is. The results are the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from .wan_vae_planes import PlanarConv, as_clip, as_frames


class Stream:
    """Gives each layer with memory what it remembers, and replaces that; `cache` has an entry per layer, in order.

    `first`: whether nothing came before.
    """

    def __init__(self, cache: list[Any]) -> None:
        self.first = cache[0] is None
        self._cache = cache
        self._at = -1

    def recall(self) -> Tensor | None:
        """Turn to the next layer and return what it remembers; None if nothing came before."""
        self._at += 1
        before: Tensor | None = self._cache[self._at]
        return before

    def remember(self, kept: Tensor) -> None:
        """Let the layer remember this instead."""
        self._cache[self._at] = kept

    def stack(self, conv: PlanarConv, x: Tensor) -> Tensor:
        """Return `b c t h w` as planes for a convolution, which remembers the last frames."""
        before = self.recall()
        self.remember(_last(conv.before, x, before))
        return conv.stack(x, conv.fill(x, before))

    def activate(self, norm: nn.Module, conv: PlanarConv, x: Tensor) -> Tensor:
        """Normalise, activate and convolve."""
        x, batch = F.silu(norm(x), inplace=True), len(x)
        planes = self.stack(conv, x)
        del x  # so that only the planes are in memory while they are convolved
        return conv.convolve(planes, batch)


def _last(count: int, x: Tensor, before: Tensor | None) -> Tensor:
    """Return the last frames of both, `count` at most, in memory that holds nothing else."""
    if x.shape[2] > count:
        return x[:, :, -count:].clone()
    if x.shape[2] == count or before is None:
        return x
    return torch.cat([before[:, :, x.shape[2] - count :], x], dim=2)


def decode_frame(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
    """Decode one latent frame, and put the next state into the list."""
    decoder, stream = vae.decoder, Stream(cache)
    x = decoder.conv_in.convolve(stream.stack(decoder.conv_in, vae.post_quant_conv(z)), len(z))
    x = _middle(decoder.mid_block, x, stream)
    for stage in decoder.up_blocks:
        for block in stage.resnets:
            x = _residual(block, x, stream)
        for layer in stage.upsamplers or ():
            x = _upsample(layer, x, stream)
    return stream.activate(decoder.norm_out, decoder.conv_out, x)


def encode_frames(vae: Any, video: Tensor, cache: list[Any]) -> Tensor:
    """Encode a clip's first frame or the next `temporal_stride`, and put the next state into the list."""
    encoder, stream = vae.encoder, Stream(cache)
    x = encoder.conv_in.convolve(stream.stack(encoder.conv_in, video), len(video))
    for layer in encoder.down_blocks:
        x = _residual(layer, x, stream) if hasattr(layer, "conv1") else _downsample(layer, x, stream)
    return stream.activate(encoder.norm_out, encoder.conv_out, _middle(encoder.mid_block, x, stream))


def _residual(block: Any, x: Tensor, stream: Stream) -> Tensor:
    # Nested, so that nobody holds on to the first half when the second is made.
    inner = stream.activate(block.norm2, block.conv2, stream.activate(block.norm1, block.conv1, x))
    inner += block.conv_shortcut(x)
    return inner


def _middle(block: Any, x: Tensor, stream: Stream) -> Tensor:
    x = _residual(block.resnets[0], x, stream)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _residual(resnet, attention(x), stream)
    return x


def _upsample(layer: Any, x: Tensor, stream: Stream) -> Tensor:
    """Double every frame's sides, and the frames if the layer does so."""
    batch = len(x)
    if layer.mode == "upsample3d":
        x = _double_frames(layer.time_conv, x, stream)
    return as_clip(layer.resample(as_frames(x)), batch)


def _double_frames(conv: PlanarConv, x: Tensor, stream: Stream) -> Tensor:
    """Make two frames of each. A clip's first latent frame stays one, and is not remembered."""
    if stream.first:
        stream.recall()
        stream.remember(torch.zeros_like(x))
        return x
    doubled = conv.convolve(stream.stack(conv, x), len(x))
    frames: Tensor = rearrange(doubled, "b (s c) t h w -> b (t s) h w c", s=2)
    return frames.movedim(-1, 1)


def _downsample(layer: Any, x: Tensor, stream: Stream) -> Tensor:
    """Halve every frame's sides, and the frames after a clip's first if the layer does so."""
    x = as_clip(layer.resample(as_frames(x)), len(x))
    if layer.mode != "downsample3d":
        return x
    before = stream.recall()
    stream.remember(x[:, :, -1:].clone())
    return x if before is None else layer.time_conv(torch.cat([before, x], dim=2))
