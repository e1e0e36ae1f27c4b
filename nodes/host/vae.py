"""A ComfyUI VAE (Wan 2.1's or a TAEHV) as a codec whose decode state is a value.

ComfyUI's own `decode` starts a new clip at every call. Here the feature cache is an argument and a result, so a
rejected draft costs no more than a copy of a list.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import comfy.model_management as mm
import comfy.model_patcher
import torch
from comfy.latent_formats import Wan21
from comfy.ldm.wan.vae import CausalConv3d, WanVAE
from comfy.ldm.wan.vae2_2 import WanVAE as Wan22VAE
from comfy.sd import VAE
from comfy.taesd.taehv import TAEHV
from einops import rearrange
from torch import Tensor, nn

from ...sdvg_core.decoders.open import VaeHeader, load_vae
from ...sdvg_core.decoders.taehv import Taehv, TaehvCodec, taehv_from_weights
from ...sdvg_core.decoders.wan_vae import check_clip_shape
from ...sdvg_core.errors import BadInput
from ...sdvg_core.settings.execution import AUTO
from ...sdvg_core.settings.load import TAE_KINDS, StatedKind, TaeKind

# One entry per causal convolution: the newest frames of its input, "Rep" after a clip's first frame, or None.
# Layers replace entries and never write into the tensors, so a tuple of them is a snapshot.
HostDecodeState = tuple[Any, ...]

LATENT_CHANNELS = 16
RGB = 3


LIKELY = 1e-6, 1e3
"""Range of the largest absolute value of each weight of a trained network."""


def check_vae(vae: VAE, tae_kind: StatedKind) -> None:
    """Raise `BadInput` unless `vae` decodes Wan 2.1's latents. `tae_kind`: as stated for a TAEHV, or `auto`."""
    vae.throw_exception_if_invalid()
    model = vae.first_stage_model
    channels = vae.latent_channels
    if isinstance(model, WanVAE):
        ends = model.encoder.conv1, model.decoder.head[-1]
        if channels == LATENT_CHANNELS and ends[0].in_channels == ends[1].out_channels == RGB:
            if tae_kind != AUTO:
                raise BadInput("vae is a Wan VAE, so tae_kind has no effect; set it to auto")
            return
        other = "a variant of it that does not map RGB to RGB"
    elif is_tae(vae) and channels == LATENT_CHANNELS:
        kind = kind_of_wire(vae, tae_kind)
        if tae_kind not in (AUTO, kind):
            raise BadInput(f"vae is a {kind}, so tae_kind {tae_kind} has no effect; set it to auto")
        if kind != AUTO:
            return
        kinds = " or ".join(TAE_KINDS)
        raise BadInput(f"nothing tells which TAEHV vae is; set tae_kind to {kinds}, as the file is called")
    elif isinstance(model, Wan22VAE):
        other = f"Wan 2.2's, which has {channels} latent channels"
    elif is_tae(vae):
        other = f"a TAEHV of another model, with {channels} latent channels"
    else:
        other = f"a VAE of another family ({type(model).__name__})"
    raise BadInput(f"vae is {other}, not Wan 2.1's or its TAEHV; load wan_2.1_vae.safetensors")


def is_tae(vae: VAE) -> bool:
    """True if a VAE is a TAEHV of ComfyUI's class or ours."""
    return isinstance(vae.first_stage_model, Taehv | TAEHV)


def kind_of_wire(vae: VAE, stated: StatedKind) -> StatedKind | None:
    """Return the kind of a TAEHV: that of the object, as ours have one, else `stated`; None for another VAE."""
    return getattr(vae, "tae_kind", stated) if is_tae(vae) else None


def _kind_of(vae: VAE, stated: StatedKind) -> TaeKind | None:
    """Return the kind of a VAE that passed `check_vae`: None unless it is a TAEHV."""
    kind = kind_of_wire(vae, stated)
    assert kind != AUTO
    return kind


def header_of(vae: VAE, tae_kind: StatedKind) -> VaeHeader:
    """Return the header of a VAE that passed `check_vae`."""
    return VaeHeader(
        latent_channels=ComfyCodec.latent_channels,
        temporal_stride=ComfyCodec.temporal_stride,
        spatial_stride=ComfyCodec.spatial_stride,
        decoder_base=None if is_tae(vae) else vae.first_stage_model.decoder.dim,
        encodes=not is_tae(vae) or _has_encoder(vae.first_stage_model),
        tae_kind=_kind_of(vae, tae_kind),
    )


def _has_encoder(model: Taehv | TAEHV) -> bool:
    """True if a TAEHV's file had an encoder.

    ComfyUI always builds one, and leaves weights that the file lacks uninitialised, so look at their values.
    """
    if model.encoder is None:
        return False
    least, most = LIKELY
    largest = [float(weight.detach().abs().max()) for weight in model.encoder.parameters() if weight.ndim > 1]
    return all(least < value < most for value in largest)


def codec_of(vae: VAE, tae_kind: StatedKind) -> ComfyCodec | TaehvCodec:
    """Return the codec over a VAE that passed `check_vae` and that ComfyUI has loaded onto its device.

    A TAEHV's weights run in our own network: ComfyUI derives the latents' scaling from the dtype, which does not
    determine it.
    """
    kind = _kind_of(vae, tae_kind)
    if kind is None:
        return ComfyCodec(vae)
    weights = vae.first_stage_model.state_dict()
    if not _has_encoder(vae.first_stage_model):
        weights = {name: weight for name, weight in weights.items() if not name.startswith("encoder.")}
    return taehv_from_weights(weights, kind=kind, name=f"a TAEHV ({kind})", device=vae.device, dtype=vae.vae_dtype)


class ComfyCodec:
    """`VideoCodec` over a Wan VAE that passed `check_vae`.

    Computes in the VAE's dtype on its device, where ComfyUI must have loaded it (see `memory`). Results are float32
    on that device.
    """

    latent_channels = LATENT_CHANNELS
    temporal_stride = 4
    spatial_stride = 8

    def __init__(self, vae: VAE) -> None:
        self._vae = vae
        self._format = Wan21()

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: HostDecodeState | None = None) -> tuple[Tensor, HostDecodeState]:
        """Decode latents `b c t h w` into frames `b f c h w` in [0, 1], and return the next state. `state` is unchanged.

        The first latent frame of a clip gives one pixel frame, each later one four. Latent frames are decoded one by
        one, unlike ComfyUI's pairs, so that the bits do not depend on how a clip is split into calls.
        """
        model = self._vae.first_stage_model
        device = self._vae.device
        with _current(device):
            z = self._format.process_out(latents.to(device, torch.float32)).to(self._vae.vae_dtype)
            convolutions = sum(isinstance(module, CausalConv3d) for module in model.decoder.modules())
            cache = list(state or (None,) * convolutions)
            shown: list[Tensor] = []
            for frame in z.split(1, dim=2):
                # Contiguous: the same strides for any number of frames.
                shown += _decode_frame(model.decoder, model.conv2(frame.contiguous()), cache)
            video = self._vae.process_output(torch.cat(shown, dim=2).to(torch.float32, copy=True))
        return rearrange(video, "b c f h w -> b f c h w"), tuple(cache)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode 1 + 4 k pixel frames `b f c h w` in [0, 1] into normalised latents `b c t h w`."""
        check_clip_shape(frames, self.temporal_stride, self.spatial_stride)
        device = self._vae.device
        with _current(device):
            video = rearrange(frames.to(torch.float32), "b f c h w -> b c f h w")
            latents = self._vae.first_stage_model.encode(
                self._vae.process_input(video).to(device, self._vae.vae_dtype)
            )
            normalised: Tensor = self._format.process_in(latents.to(torch.float32))
            return normalised


def _decode_frame(decoder: nn.Module, x: Tensor, cache: list[Any]) -> list[Tensor]:
    """Decode one latent frame into pieces of pixels `b c f h w`, and update the cache.

    ComfyUI decodes a single frame only at the start of a clip, and its layers cache frames of the last call only.
    Layers before the first temporal upsampling see one frame per call, so we prepend the previous one to their cache.
    """
    # Only those layers work at the latents' size; copies of the other entries would double the cache.
    old = [entry if torch.is_tensor(entry) and entry.shape[-2:] == x.shape[-2:] else None for entry in cache]
    out: list[Tensor] = decoder(x, feat_cache=cache, feat_idx=[0])
    for i, (before, after) in enumerate(zip(old, cache, strict=True)):
        if before is not None and after.shape[2] == 1:
            cache[i] = torch.cat((before[:, :, -1:], after), dim=2)
    return out


def _current(device: torch.device) -> AbstractContextManager[None]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class FastVAE(VAE):
    """A TAEHV as ComfyUI's VAE, for the sampler, VAE Decode and Select VAE Device.

    ComfyUI's own class loads only the published widths and does not know the kind.
    `first_stage_model`: our network, which has no `decode`, so every base method that calls it is overridden.
    """

    def __init__(self, path: str | Path) -> None:
        """Load a TAEHV in float32 onto the offload device. Raises `BadInput` if it cannot be used."""
        # Do not call the base class's `__init__`, which would look for a ComfyUI class that fits the weights.
        codec = load_vae(path)
        assert isinstance(codec, TaehvCodec)
        net = codec.net
        self.tae_kind = codec.kind
        self.first_stage_model = net.to(mm.vae_offload_device())
        self.device = mm.vae_device()
        self.output_device = mm.intermediate_device()
        self.vae_dtype = next(net.parameters()).dtype
        self.working_dtypes = [self.vae_dtype]
        self.patcher = comfy.model_patcher.CoreModelPatcher(net, self.device, mm.vae_offload_device())
        self.latent_channels = LATENT_CHANNELS
        self.latent_dim = 3
        self.output_channels = RGB
        across = ComfyCodec.spatial_stride
        along = ComfyCodec.temporal_stride
        self.upscale_ratio = (lambda count: max(0, along * count - along + 1), across, across)
        self.downscale_ratio = (lambda count: max(0, (count + along - 1) // along), across, across)
        self.size = None

    def decode(self, samples_in: Tensor, vae_options: Any = None) -> Tensor:
        """Decode a LATENT's samples `b c t h w` into pixel frames `b f h w c`."""
        mm.load_models_gpu([self.patcher])
        frames, _ = codec_of(self, self.tae_kind).decode(Wan21().process_in(samples_in.float()))
        return frames.movedim(2, -1).to(self.output_device)

    def decode_tiled(self, samples: Tensor, *sizes: Any, **more: Any) -> Tensor:
        """Decode without tiles, which so small a network does not need."""
        return self.decode(samples)

    def encode(self, *frames: Any, **more: Any) -> NoReturn:
        """Raise `BadInput`: outside the sampler, it only decodes."""
        raise BadInput("fast_vae encodes only in the sampler; wire the vae of SDVG Pocket Models in here")

    encode_tiled = encode
