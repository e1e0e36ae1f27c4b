"""The Wan VAE's layers as 2-D layers with channels last, which CPUs and tensor cores run faster.

A causal 3-D convolution equals a 2-D one over the stacked channels of a frame and the frames before it. Sums are in
another order, so pixels differ from diffusers' own layers by rounding; those remain the choice `diffusers`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

# Square of the smallest length that diffusers divides by.
TINY = 1e-24
# Without this kernel, torch squares half-precision numbers in half precision.
SQUARES_WIDE = hasattr(torch.ops.aten, "_fused_rms_norm")


class PlanarConv(nn.Conv3d):
    """Replaces a causal convolution of diffusers with stride 1. `before`: number of earlier frames it needs."""

    def __init__(self, conv: Any) -> None:
        super().__init__(conv.in_channels, conv.out_channels, conv.kernel_size, device="meta")
        # In this order the 2-D weights are a view, with channels last.
        ordered = conv.weight.data.permute(0, 3, 4, 2, 1).contiguous().permute(0, 4, 3, 1, 2)
        self.weight = nn.Parameter(ordered, requires_grad=conv.weight.requires_grad)
        self.bias = conv.bias
        left, _, above, _, self.before, _ = conv._padding
        self._sides = (above, left)

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """Convolve `b c t h w`. `before`: earlier frames; missing ones are zeros."""
        return self.convolve(self.stack(x, self.fill(x, before)), len(x))

    def fill(self, x: Tensor, before: Tensor | None) -> Tensor:
        """Pad `before` with zeros to the number of earlier frames needed."""
        have = 0 if before is None else before.shape[2]
        if before is not None and have == self.before:
            return before
        missing = torch.zeros_like(x[:, :, :1]).expand(-1, -1, self.before - have, -1, -1)
        return missing if before is None else torch.cat([missing, before], dim=2)

    def stack(self, x: Tensor, before: Tensor) -> Tensor:
        """Stack the channels of each frame and of the frames before it: planes `(b t) c h w`."""
        if not self.before:
            return as_frames(x)
        batch, channels, frames, height, width = x.shape
        planes = x.new_empty(batch, frames, height, width, self.before + 1, channels)
        for k in range(self.before + 1):
            # Place k is the frame `self.before - k` steps earlier, which for the first ones is in `before`.
            early = min(self.before - k, frames)
            planes[:, :early, :, :, k] = before[:, :, k : k + early].movedim(1, -1)
            planes[:, early:, :, :, k] = x[:, :, : frames - early].movedim(1, -1)
        return as_frames(planes.flatten(4).movedim(-1, 1))

    def convolve(self, planes: Tensor, batch: int) -> Tensor:
        """Convolve planes into `b c t h w`."""
        weight = self.weight.transpose(1, 2).flatten(1, 2)
        return as_clip(F.conv2d(planes, weight, self.bias, padding=self._sides), batch)


# Both go through a contiguous copy, as convolutions look at strides, even of axes of length 1.


def as_frames(clip: Tensor) -> Tensor:
    """Reshape `b c t h w` to `(b t) c h w`, channels last."""
    frames: Tensor = clip.movedim(1, -1).contiguous().flatten(0, 1).movedim(-1, 1)
    return frames


def as_clip(frames: Tensor, batch: int) -> Tensor:
    """Reshape `(b t) c h w` to `b c t h w`, channels last."""
    clip: Tensor = frames.movedim(1, -1).contiguous().unflatten(0, (batch, -1)).movedim(-1, 1)
    return clip


class PlanarNorm(nn.Module):
    """RMS norm over the channels of each pixel; replaces diffusers'."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.gamma = norm.gamma
        # diffusers has the number 0 for no bias.
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
    """Nearest-neighbour upsampling; exact in any dtype, so without diffusers' cast to float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Upsample `b c h w` to `b c 2h 2w`, channels last."""
        small = x.contiguous(memory_format=torch.channels_last)
        doubled: Tensor = F.interpolate(small, scale_factor=2.0, mode="nearest-exact")
        return doubled


def make_planar(vae: nn.Module) -> None:
    """Replace the layers of a diffusers VAE, except convolutions with a stride in time."""
    for module in list(vae.modules()):
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            order = torch.channels_last if isinstance(module, nn.Conv2d) else torch.channels_last_3d
            module.weight.data = module.weight.data.contiguous(memory_format=order)
        for name, child in module.named_children():
            kind = type(child).__name__
            if kind == "WanCausalConv3d" and child.stride == (1, 1, 1):
                setattr(module, name, PlanarConv(child))
            elif kind == "WanRMS_norm":
                setattr(module, name, PlanarNorm(child))
            elif kind == "WanUpsample":
                setattr(module, name, PlanarUpsample())


# --- the forward pass in diffusers' order, with fewer copies. diffusers copies the cached part of a layer's input,
# concatenates and pads it; here frames are written straight into the planes, and sums are in place. The results are
# the same, bit for bit.


class LayerMemory:
    """Iterates over the decode state of a half. `cache`: an entry per layer. `first`: True at a clip's start."""

    def __init__(self, cache: list[Any]) -> None:
        self.first = cache[0] is None
        self._cache = cache
        self._at = -1

    def recall(self) -> Tensor | None:
        """Advance to the next layer and return its memory; None at a clip's start."""
        self._at += 1
        before: Tensor | None = self._cache[self._at]
        return before

    def remember(self, kept: Tensor) -> None:
        """Replace the layer's memory."""
        self._cache[self._at] = kept

    def stack(self, conv: PlanarConv, x: Tensor) -> Tensor:
        """Return planes of `b c t h w` for a convolution, and remember its last frames."""
        before = self.recall()
        self.remember(_last(conv.before, x, before))
        return conv.stack(x, conv.fill(x, before))

    def activate(self, norm: nn.Module, conv: PlanarConv, x: Tensor) -> Tensor:
        """Normalise, activate and convolve."""
        batch = len(x)
        x = F.silu(norm(x), inplace=True)
        planes = self.stack(conv, x)
        del x  # only the planes are needed for the convolution
        return conv.convolve(planes, batch)


def _last(count: int, x: Tensor, before: Tensor | None) -> Tensor:
    """Return the last `count` frames of both, or fewer, in memory of their own."""
    if x.shape[2] > count:
        return x[:, :, -count:].clone()
    if x.shape[2] == count or before is None:
        return x
    return torch.cat([before[:, :, x.shape[2] - count :], x], dim=2)


def decode_frame(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
    """Decode one latent frame, and update `cache`."""
    decoder = vae.decoder
    memory = LayerMemory(cache)
    x = decoder.conv_in.convolve(memory.stack(decoder.conv_in, vae.post_quant_conv(z)), len(z))
    x = _middle(decoder.mid_block, x, memory)
    for stage in decoder.up_blocks:
        for block in stage.resnets:
            x = _residual(block, x, memory)
        for layer in stage.upsamplers or ():
            x = _upsample(layer, x, memory)
    return memory.activate(decoder.norm_out, decoder.conv_out, x)


def encode_frames(vae: Any, video: Tensor, cache: list[Any]) -> Tensor:
    """Encode a clip's first frame or the next `temporal_stride` ones, and update `cache`."""
    encoder = vae.encoder
    memory = LayerMemory(cache)
    x = encoder.conv_in.convolve(memory.stack(encoder.conv_in, video), len(video))
    for layer in encoder.down_blocks:
        x = _residual(layer, x, memory) if hasattr(layer, "conv1") else _downsample(layer, x, memory)
    return memory.activate(encoder.norm_out, encoder.conv_out, _middle(encoder.mid_block, x, memory))


def _residual(block: Any, x: Tensor, memory: LayerMemory) -> Tensor:
    # Nested, so that the first activation is freed before the second.
    inner = memory.activate(block.norm2, block.conv2, memory.activate(block.norm1, block.conv1, x))
    inner += block.conv_shortcut(x)
    return inner


def _middle(block: Any, x: Tensor, memory: LayerMemory) -> Tensor:
    x = _residual(block.resnets[0], x, memory)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _residual(resnet, attention(x), memory)
    return x


def _upsample(layer: Any, x: Tensor, memory: LayerMemory) -> Tensor:
    """Double height and width, and the number of frames if the layer does."""
    batch = len(x)
    if layer.mode == "upsample3d":
        x = _double_frames(layer.time_conv, x, memory)
    return as_clip(layer.resample(as_frames(x)), batch)


def _double_frames(conv: PlanarConv, x: Tensor, memory: LayerMemory) -> Tensor:
    """Double the number of frames, except of a clip's first latent frame, which is not remembered."""
    if memory.first:
        memory.recall()
        memory.remember(torch.zeros_like(x))
        return x
    doubled = conv.convolve(memory.stack(conv, x), len(x))
    frames: Tensor = rearrange(doubled, "b (s c) t h w -> b (t s) h w c", s=2)
    return frames.movedim(-1, 1)


def _downsample(layer: Any, x: Tensor, memory: LayerMemory) -> Tensor:
    """Halve height and width, and the number of frames after a clip's first if the layer does."""
    x = as_clip(layer.resample(as_frames(x)), len(x))
    if layer.mode != "downsample3d":
        return x
    before = memory.recall()
    memory.remember(x[:, :, -1:].clone())
    return x if before is None else layer.time_conv(torch.cat([before, x], dim=2))
