"""The Wan 2.1 VAE as a codec whose decode state is a value.

The layers are diffusers' `AutoencoderKLWan`, called here one latent frame at a time. Its own `decode` clears the
feature cache at start and end, so it cannot resume a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ..checkpoints.weights import WeightFile, check_complete, check_finite_weights, open_weights
from ..devices.execution import Backend, VaeLayers, compiled, own_copy, settled_layers
from ..errors import BadInput
from .wan_vae_files import (
    ADVICE,
    WAN_MEAN,
    WAN_STD,
    check_frames,
    on_its_own,
    read_sizes,
    with_diffusers_names,
)
from .wan_vae_planes import decode_frame as decode_planes
from .wan_vae_planes import encode_frames as encode_planes
from .wan_vae_planes import make_planar

# One entry per causal convolution: the last two frames of its input. The layers replace entries and never write
# into the tensors, so a shallow copy is a complete snapshot, and a rejected draft costs no copy of the state.
DecodeState = tuple[Any, ...]
Step = Callable[[Any, Tensor, list[Any]], Tensor]


class WanCodec:
    """Turns Wan 2.1 latents into pixels and back; a `VideoCodec`.

    Latents may have any dtype and device; the codec computes in the VAE's own, and returns float32 on the VAE's
    device.
    `layers`: how the VAE computes; the codec owns the VAE from now on and may change it. `compiler`: compiles the
    decoder, once each for a clip's first latent frame, its second, and all later ones; None leaves it uncompiled.
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
        self.device, self.dtype = weight.device, weight.dtype
        planes = settled_layers(layers) == "planes"
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
    def decode(self, latents: Tensor, state: DecodeState | None = None) -> tuple[Tensor, DecodeState]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state.

        The first latent frame of a clip gives one pixel frame, each later one `temporal_stride`. `state` itself is
        unchanged. Latent frames are decoded one by one, so the result does not depend on how a clip is cut into
        calls, bit for bit.
        """
        z = (latents.to(self.device, torch.float32) * self._std + self._mean).to(self.dtype)
        cache = _empty_cache(self._vae.decoder) if state is None else list(state)
        pieces = []
        for frame in z.chunk(z.shape[2], dim=2):
            # Contiguous, so that the layers see the same strides for any number of frames.
            pieces.append(self._decode_frame(self._vae, frame.contiguous(memory_format=self._format), cache))
        video = torch.cat(pieces, dim=2).float()
        # Infinity must not turn into white: what is not finite becomes NaN.
        video = video.clamp(-1, 1).masked_fill(~video.isfinite(), torch.nan)
        return rearrange((video + 1) / 2, "b c f h w -> b f c h w"), tuple(cache)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode a clip of 1 + `temporal_stride` * k pixel frames, `b f c h w` in [0, 1], into `b c t h w`.

        The latents are the posterior's mean, normalised. Raises `BadInput` if the clip's size does not fit.
        """
        check_frames(frames, self.temporal_stride, self.spatial_stride)
        cache, moments = _empty_cache(self._vae.encoder), []
        # Piece by piece also onto the device: a long clip would take more room there than decoding does.
        for piece in frames.tensor_split([*range(1, frames.shape[1], self.temporal_stride)], dim=1):
            video = rearrange(piece.to(self.device, torch.float32), "b f c h w -> b c f h w")
            moments.append(self._encode_frames(self._vae, (video * 2 - 1).to(self.dtype), cache))
        mean: Tensor = self._vae.quant_conv(torch.cat(moments, dim=2)).chunk(2, dim=1)[0]
        return (mean.float() - self._mean) / self._std


def _decode_frame(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
    """Decode one latent frame, and put the next state into the list."""
    video: Tensor = vae.decoder(vae.post_quant_conv(z), feat_cache=cache, feat_idx=[0])
    return video


def _encode_frames(vae: Any, video: Tensor, cache: list[Any]) -> Tensor:
    """Encode a clip's first frame or the next `temporal_stride`, and put the next state into the list."""
    moments: Tensor = vae.encoder(video, feat_cache=cache, feat_idx=[0])
    return moments


def _compiled(decode_frame: Step, memory_format: torch.memory_format, compiler: Backend) -> Step:
    fast = compiled(own_copy(decode_frame), compiler)

    def decode_in_order(vae: Any, z: Tensor, cache: list[Any]) -> Tensor:
        video = fast(vae, z, cache)
        cache[:] = [on_its_own(entry, memory_format) for entry in cache]
        return video

    return decode_in_order


def _empty_cache(half: nn.Module) -> list[Any]:
    # 1x1 shortcuts cache nothing, so a few entries stay unused.
    return [None] * sum(isinstance(module, nn.Conv3d) for module in half.modules())


def load_wan_vae(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    layers: VaeLayers = "diffusers",
    compiler: Backend | None = None,
) -> WanCodec:
    """Load the Wan 2.1 VAE from a file or a diffusers folder, with the original release's names or diffusers'.

    `layers`, `compiler`: see `WanCodec`. Layers other than diffusers' own add in another order.
    Raises `BadInput` if the file cannot be read, is another model, or is incomplete.
    """
    file, sizes = open_wan_vae(path)
    vae = empty_wan_vae(**sizes)
    weights = {name: file[name].to(device, dtype) for name in vae.state_dict()}
    vae.load_state_dict(weights, assign=True)
    check_finite_weights(vae, file.path.name)
    return WanCodec(
        vae,
        temporal_stride=sizes["scale_factor_temporal"],
        spatial_stride=sizes["scale_factor_spatial"],
        layers=layers,
        compiler=compiler,
    )


def open_wan_vae(path: str | Path) -> tuple[WeightFile, dict[str, Any]]:
    """Return the VAE's tensors under diffusers' names, and its sizes as `read_sizes` does.

    Raises `BadInput` if it could not be loaded.
    """
    path = Path(path)
    file = with_diffusers_names(open_weights(path / "vae" if (path / "vae").is_dir() else path))
    sizes = read_sizes(file)
    check_complete(file, _weights_of(json.dumps(sizes)), "Wan 2.1 VAE", ADVICE)
    return file, sizes


@lru_cache(maxsize=4)
def _weights_of(sizes: str) -> Mapping[str, Tensor]:
    # Building the module to look at it takes as long as all other checks of a request.
    return empty_wan_vae(**json.loads(sizes)).state_dict()


def empty_wan_vae(**sizes: Any) -> nn.Module:
    """Return diffusers' Wan VAE of these sizes, without weights in memory. Raises `BadInput` without diffusers."""
    try:
        from diffusers import AutoencoderKLWan
    except ImportError as error:
        raise BadInput("the Wan VAE needs the package diffusers; pip install 'sdvg[standalone]'") from error
    with torch.device("meta"):
        vae: nn.Module = AutoencoderKLWan(**sizes)
    return vae.train(False).requires_grad_(False)
