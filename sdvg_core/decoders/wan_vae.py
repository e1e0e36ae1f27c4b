"""The Wan 2.1 VAE as a codec whose decode state is a value, and its files with either naming of weights.

The layers are diffusers' `AutoencoderKLWan`, called one latent frame at a time. Its own `decode` is not used: it
clears the feature cache at start and end, so it cannot resume a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ..devices.compiling import Backend, compiled, copy_function
from ..errors import BadInput
from ..settings.execution import VaeLayers
from ..weights.names import Table, renamer
from ..weights.weight_file import (
    WeightFile,
    check_complete,
    count_layers,
    shape_of,
)
from .planes import decode_frame as decode_planes
from .planes import encode_frames as encode_planes
from .planes import make_planar

VAE_ADVICE = "give wan_2.1_vae.safetensors or Wan2.1_VAE.pth"
_shape = partial(shape_of, dims=5, what="Wan 2.1 VAE", advice=VAE_ADVICE)

# Mean and standard deviation of each latent channel, as published with Wan 2.1.
WAN_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
WAN_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)

# One entry per causal convolution: the last two frames of its input. Layers replace entries and never write into
# the tensors, so a shallow copy is a snapshot, and a rejected draft costs no copy of tensors.
FrameCaches = tuple[Any, ...]
DecodeStep = Callable[[Any, Tensor, list[Any]], Tensor]


class WanCodec:
    """The Wan 2.1 VAE as a `VideoCodec`.

    Latents may have any dtype and device; the codec computes in the VAE's, and returns float32 on its device.
    `layers`: see `VaeLayers`; it may change the VAE. `compiler`: compiles the decoder, for a clip's first latent
    frame, the second and later ones; None for none.
    """

    def __init__(
        self,
        vae: nn.Module,
        *,
        temporal_stride: int,
        spatial_stride: int,
        layers: VaeLayers = "diffusers",
        compiler: Backend | None = None,
    ) -> None:
        self.latent_channels = len(WAN_MEAN)
        self.temporal_stride = temporal_stride
        self.spatial_stride = spatial_stride
        weight = next(vae.parameters())
        self.device = weight.device
        self.dtype = weight.dtype
        planes = layers == "planes"
        if planes:
            make_planar(vae)
        self._vae: Any = vae
        self._format = torch.channels_last_3d if planes else torch.contiguous_format
        decode_frame = decode_planes if planes else _decode_frame
        self._encode_frames = encode_planes if planes else _encode_frames
        self._decode_frame = _compiled(decode_frame, self._format, compiler) if compiler else decode_frame
        self._mean = torch.tensor(WAN_MEAN, dtype=torch.float32, device=self.device).view(1, -1, 1, 1, 1)
        self._std = torch.tensor(WAN_STD, dtype=torch.float32, device=self.device).view(1, -1, 1, 1, 1)

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: FrameCaches | None = None) -> tuple[Tensor, FrameCaches]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state. `state` is unchanged.

        The first latent frame of a clip gives one pixel frame, each later one `temporal_stride`. Latent frames are
        decoded one by one, so that the bits do not depend on how a clip is split into calls.
        """
        z = (latents.to(self.device, torch.float32) * self._std + self._mean).to(self.dtype)
        cache = _empty_cache(self._vae.decoder) if state is None else list(state)
        pieces = []
        for frame in z.chunk(z.shape[2], dim=2):
            # Contiguous: the same strides for any number of frames.
            pieces.append(self._decode_frame(self._vae, frame.contiguous(memory_format=self._format), cache))
        video = torch.cat(pieces, dim=2).float()
        # Values that are not finite become NaN, as clamping would turn infinity into white.
        video = video.clamp(-1, 1).masked_fill(~video.isfinite(), torch.nan)
        return rearrange((video + 1) / 2, "b c f h w -> b f c h w"), tuple(cache)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode 1 + `temporal_stride` * k pixel frames `b f c h w` in [0, 1] into normalised latents `b c t h w`.

        The latents are the posterior's mean. Raises `BadInput` for a size that does not fit.
        """
        check_clip_shape(frames, self.temporal_stride, self.spatial_stride)
        cache = _empty_cache(self._vae.encoder)
        moments = []
        # Upload in pieces: a whole long clip would take more memory than decoding.
        for piece in frames.tensor_split([*range(1, frames.shape[1], self.temporal_stride)], dim=1):
            video = rearrange(piece.to(self.device, torch.float32), "b f c h w -> b c f h w")
            moments.append(self._encode_frames(self._vae, (video * 2 - 1).to(self.dtype), cache))
        mean: Tensor = self._vae.quant_conv(torch.cat(moments, dim=2)).chunk(2, dim=1)[0]
        return (mean.float() - self._mean) / self._std


def _decode_frame(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
    video: Tensor = vae.decoder(vae.post_quant_conv(z), feat_cache=cache, feat_idx=[0])
    return video


def _encode_frames(vae: Any, video: Tensor, cache: list[Any]) -> Tensor:
    moments: Tensor = vae.encoder(video, feat_cache=cache, feat_idx=[0])
    return moments


def _compiled(decode_frame: DecodeStep, memory_format: torch.memory_format, compiler: Backend) -> DecodeStep:
    fast = compiled(copy_function(decode_frame), compiler)

    def decode_in_order(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
        video = fast(vae, z, cache)
        cache[:] = [unshared(entry, memory_format) for entry in cache]
        return video

    return decode_in_order


def _empty_cache(half: nn.Module) -> list[Any]:
    # 1x1 shortcuts have no memory, so a few entries stay unused.
    return [None] * sum(isinstance(module, nn.Conv3d) for module in half.modules())


def open_wan_vae(file: WeightFile) -> tuple[WeightFile, dict[str, Any]]:
    """Return a VAE's tensors under diffusers' names, and its sizes. Raises `BadInput` if it cannot be loaded."""
    file = file.renamed(without_wrapper)
    if any(name.startswith(("encoder.downsamples.", "decoder.upsamples.")) for name in file.names):
        resamplers = (re.match(r"decoder\.upsamples\.([0-9]{1,2})\.resample\.", name) for name in file.names)
        # After the residual blocks of one resolution.
        first = min((int(match.group(1)) for match in resamplers if match), default=0)
        file = file.renamed(renamer(names_of(count_layers(file.names, "decoder.upsamples"), first + 1)))
    # Other diffusers VAEs share these prefixes.
    if not any(name.startswith(("encoder.down_blocks.", "decoder.up_blocks.")) for name in file.names):
        raise BadInput(f"{file.path.name} holds no video VAE; {VAE_ADVICE}")
    sizes = read_vae_sizes(file)
    check_complete(file, _weights_of(json.dumps(sizes)), "Wan 2.1 VAE", VAE_ADVICE)
    return file, sizes


@lru_cache(maxsize=4)
def _weights_of(sizes: str) -> Mapping[str, Tensor]:
    # Memoised: building the module takes as long as all other checks of a request.
    return empty_wan_vae(**json.loads(sizes)).state_dict()


def empty_wan_vae(**sizes: Any) -> nn.Module:
    """Return diffusers' Wan VAE on the meta device. Raises `BadInput` if diffusers is not installed."""
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise BadInput("the Wan VAE needs the package diffusers; pip install 'sdvg[standalone]'") from error
    with torch.device("meta"):
        vae: nn.Module = AutoencoderKLWan(**sizes)
    return vae.train(False).requires_grad_(False)


def check_clip_shape(frames: Tensor, temporal_stride: int, spatial_stride: int) -> None:
    """Raise `BadInput` unless these are 1 + `temporal_stride` * k RGB frames `b f c h w` of a valid size."""
    shape = tuple(frames.shape)
    is_clip = len(shape) == 5 and shape[2] == 3 and shape[1] % temporal_stride == 1
    if not is_clip or any(size % spatial_stride for size in shape[3:]):
        wanted = f"1 + {temporal_stride} * k RGB frames with sides that are multiples of {spatial_stride}"
        raise BadInput(f"a clip of {shape} is not b f c h w: {wanted}; cut, crop or resize it")


def unshared(entry: Any, memory_format: torch.memory_format) -> Any:
    """Return an entry of the state in a fixed memory format and in memory of its own.

    Other strides would trigger a new compilation, and a compiler may return a view of a layer's whole input.
    """
    if not torch.is_tensor(entry):
        return entry
    entry = entry.contiguous(memory_format=memory_format)
    return entry if entry.untyped_storage().nbytes() == entry.nbytes else entry.clone()


def read_vae_sizes(file: WeightFile) -> dict[str, Any]:
    """Return the arguments of diffusers' `AutoencoderKLWan` for weights with its names.

    Raises `BadInput` for other latents, and if a weight needed for a size is missing.
    """
    channels = _shape(file, "post_quant_conv.weight")[0]
    if channels != len(WAN_MEAN):
        count = f"{channels} latent channels, not {len(WAN_MEAN)} (Wan 2.2 5B has 48)"
        raise BadInput(f"{file.path.name} has {count}; {VAE_ADVICE}")
    base = _shape(file, "encoder.conv_in.weight")[0]
    levels, temporal = _encoder_levels(file)
    multipliers = [level[-1] // base for level in levels if level]
    if len(multipliers) < len(levels) or not all(multipliers) or len({len(level) for level in levels}) > 1:
        raise BadInput(f"the encoder in {file.path.name} lacks blocks; {VAE_ADVICE}")
    return {
        "base_dim": base,
        "decoder_base_dim": max(_shape(file, "decoder.conv_out.weight")[1] // multipliers[0], 1),
        "z_dim": channels,
        "dim_mult": multipliers,
        "num_res_blocks": len(levels[0]),
        "temperal_downsample": temporal,
        "scale_factor_temporal": 2 ** sum(temporal),
        "scale_factor_spatial": 2 ** len(temporal),
    }


def _encoder_levels(file: WeightFile) -> tuple[list[list[int]], list[bool]]:
    """Return the widths of the residual blocks by resolution, and whether each downsampling also halves time."""
    layers = {name.rpartition(".")[0] for name in file.names}
    levels: list[list[int]] = [[]]
    temporal: list[bool] = []
    for n in range(count_layers(file.names, "encoder.down_blocks")):
        block = f"encoder.down_blocks.{n}"
        if f"{block}.resample.1" in layers:
            temporal.append(f"{block}.time_conv" in layers)
            levels.append([])
        else:
            levels[-1].append(_shape(file, f"{block}.conv1.weight")[0])
    return levels, temporal


# --- two namings of the weights: the original release's (and ComfyUI's), and diffusers'. The original has one flat
# list of blocks in each half, where diffusers groups the decoder's by resolution; layers of a residual block have
# numbers in the original and names in diffusers.

# Modules that held the VAE when it was saved.
without_wrapper = renamer({"^.model": "^", "^.first_stage_model": "^", "^.vae": "^"})
VAE_NAMES: Table = {
    "^.conv1": "quant_conv",
    "^.conv2": "post_quant_conv",
    **{f"{half}.conv1": f"{half}.conv_in" for half in ("encoder", "decoder")},
    "encoder.downsamples": "encoder.down_blocks",
    "middle.0": "mid_block.resnets.0",
    "middle.1": "mid_block.attentions.0",
    "middle.2": "mid_block.resnets.1",
    "head.0": "norm_out",
    "head.2": "conv_out",
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
"""original -> diffusers, but for the blocks of the decoder."""


def names_of(decoder_blocks: int, stage: int) -> Table:
    """Return original -> diffusers. `stage`: blocks of a decoder stage, resampler included."""
    blocks = {}
    for number in range(decoder_blocks):
        level, place = divmod(number, stage)
        block = "upsamplers.0" if place == stage - 1 else f"resnets.{place}"
        blocks[f"decoder.upsamples.{number}"] = f"decoder.up_blocks.{level}.{block}"
    return {**VAE_NAMES, **blocks}
