"""A ComfyUI VAE, Wan 2.1's or a TAEHV, as a codec whose decode state is a value.

ComfyUI's own `decode` starts over at every call. Here the decoder gets its feature cache as an argument and returns it,
so a rejected draft costs a list copy and nothing else.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from comfy.latent_formats import Wan21
from comfy.ldm.wan.vae import CausalConv3d, WanVAE
from comfy.sd import VAE
from einops import rearrange
from torch import Tensor

from ...sdvg_core.decoders import TAE_KINDS, DecoderName, StatedKind
from ...sdvg_core.decoders.taehv import TaehvCodec, taehv_from_weights
from ...sdvg_core.decoders.taehv_net import Taehv
from ...sdvg_core.decoders.vae_files import LIGHT_BASE
from ...sdvg_core.devices.execution import AUTO
from ...sdvg_core.errors import BadInput
from ...sdvg_core.plan.decoders import PUBLISHED_BASE

# One entry per causal convolution: the newest frames of its input, "Rep" after a clip's first frame, or None.
# The layers replace entries and never write into the tensors, so a tuple of them is a whole snapshot.
DecodeState = tuple[Any, ...]

LATENT_CHANNELS = 16
RGB = 3
LOAD_WAN_VAE = "load wan_2.1_vae.safetensors with Load VAE"
TAEHV = "taehv"
"""The end of the name of ComfyUI's module for it."""


def check_decoders(vae: VAE, judge: VAE | None, tae_kind: StatedKind) -> None:
    """Raise `BadInput` unless `vae` can make the video's pixels, and `judge`, if there is one, decode drafts.

    `tae_kind`: the kind of a TAEHV that does not carry it, as the artist states it.
    """
    for found, what in ((vae, "vae"), (judge, "judge_vae")):
        if found is not None:
            _check_decoder(found, what, tae_kind)
    if isinstance(vae.first_stage_model, Taehv) and vae.first_stage_model.encoder is None:
        raise BadInput(
            "vae must be able to encode, but this TAEHV is a decoder alone; wire it into judge_vae, and the VAE of Wan 2.1 "
            "into vae"
        )
    if judge is None:
        return
    if judge.first_stage_model is vae.first_stage_model:
        raise BadInput(
            "vae and judge_vae must be two decoders, but one is wired into both; unwire judge_vae, or load a faster one"
        )
    if is_tae(vae) and not is_tae(judge):
        raise BadInput(
            "judge_vae should be the faster decoder, but vae is a TAEHV and judge_vae the VAE of Wan 2.1; swap the two"
        )


def is_tae(vae: VAE) -> bool:
    """Whether a VAE is a TAEHV, of ComfyUI's class or of ours."""
    model = vae.first_stage_model
    return isinstance(model, Taehv) or type(model).__module__.endswith(TAEHV)


def kind_of_wire(vae: VAE, stated: StatedKind) -> StatedKind:
    """Return the kind of a TAEHV: its own if it carries one, as those of ours do, else what the artist states."""
    kind: StatedKind = getattr(vae, "tae_kind", stated)
    return kind


def planned_as(vae: VAE) -> tuple[DecoderName, int]:
    """Return the decoder that a plan takes a VAE for, and its narrowest width."""
    if is_tae(vae):
        return "tae", PUBLISHED_BASE
    base = vae.first_stage_model.decoder.dim
    return ("lightvae" if base == LIGHT_BASE else "wan"), base


def codec_of(vae: VAE, tae_kind: StatedKind) -> ComfyCodec | TaehvCodec:
    """Return the codec over a VAE that passed `check_decoders`, which ComfyUI has put on its device.

    A TAEHV's weights are used with our own scaling: ComfyUI goes by their dtype, which tells nothing.
    """
    if not is_tae(vae):
        return ComfyCodec(vae)
    kind = kind_of_wire(vae, tae_kind)
    assert kind != AUTO
    weights = vae.first_stage_model.state_dict()
    return taehv_from_weights(weights, kind=kind, name=f"a TAEHV ({kind})", device=vae.device, dtype=vae.vae_dtype)


def _check_decoder(vae: VAE, what: str, tae_kind: StatedKind) -> None:
    vae.throw_exception_if_invalid()
    model = vae.first_stage_model
    family = type(model).__module__
    if isinstance(model, WanVAE) and vae.latent_channels == LATENT_CHANNELS and _shows_rgb(model):
        return
    if is_tae(vae) and vae.latent_channels == LATENT_CHANNELS:
        if kind_of_wire(vae, tae_kind) == AUTO:
            raise BadInput(
                f"{what} is a TAEHV, and its wire does not tell which latents it takes; set tae_kind to "
                f"{' or '.join(TAE_KINDS)}, as the file is called"
            )
        return
    if isinstance(model, WanVAE):
        found = "a variant of it that does not map RGB to RGB"
    elif family.endswith("wan.vae2_2"):
        found = f"Wan 2.2's, which has {vae.latent_channels} latent channels"
    elif family.endswith(TAEHV):
        found = f"a TAEHV of another model, with {vae.latent_channels} latent channels"
    else:
        found = f"a VAE of another family ({type(model).__name__})"
    raise BadInput(f"{what} must be the VAE of Wan 2.1 or its TAEHV, but got {found}; {LOAD_WAN_VAE}")


def _shows_rgb(model: WanVAE) -> bool:
    return model.encoder.conv1.in_channels == model.decoder.head[-1].out_channels == RGB


class ComfyCodec:
    """Turns Wan 2.1 latents into pixels and back, with a Wan VAE that passed `check_decoders`; a `VideoCodec`.

    It works in the VAE's dtype and on its device, where ComfyUI must have put it (see `residency`). Results are
    float32 on that device.
    """

    latent_channels = LATENT_CHANNELS
    temporal_stride = 4
    spatial_stride = 8

    def __init__(self, vae: VAE) -> None:
        self._vae = vae
        self._format = Wan21()

    @torch.inference_mode()
    def decode(self, latents: Tensor, state: DecodeState | None = None) -> tuple[Tensor, DecodeState]:
        """Decode `b c t h w` into `b f c h w` in [0, 1], and return the next state; `state` itself is unchanged.

        The first latent frame of a clip gives one pixel frame, each later one four. Latent frames are decoded one by
        one, so the result does not depend on how a clip is cut into calls, bit for bit. ComfyUI's own decode takes
        them in pairs.
        """
        self._check_latents(latents)
        model, device = self._vae.first_stage_model, self._vae.device
        with _current(device):
            z = self._format.process_out(latents.to(device, torch.float32)).to(self._vae.vae_dtype)
            cache = list(state or _empty_cache(model.decoder))
            shown: list[Tensor] = []
            for frame in z.split(1, dim=2):
                # Contiguous, so that the layers see the same strides for any number of frames.
                shown += _decode_frame(model.decoder, model.conv2(frame.contiguous()), cache)
            video = self._vae.process_output(torch.cat(shown, dim=2).to(torch.float32, copy=True))
        return rearrange(video, "b c f h w -> b f c h w"), tuple(cache)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode a clip of 1 + 4 k pixel frames, `b f c h w` in [0, 1], into normalised latents `b c t h w`."""
        self._check_frames(frames)
        model, device = self._vae.first_stage_model, self._vae.device
        with _current(device):
            video = rearrange(frames.to(device, torch.float32), "b f c h w -> b c f h w")
            latents = model.encode(self._vae.process_input(video).to(self._vae.vae_dtype))
            return self._format.process_in(latents.to(torch.float32))

    def _check_latents(self, latents: Tensor) -> None:
        if latents.ndim != 5 or latents.shape[1] != LATENT_CHANNELS or latents.shape[2] < 1:
            raise BadInput(
                f"latents need the shape b c t h w, {LATENT_CHANNELS} channels and at least one latent frame, but got "
                f"{tuple(latents.shape)}; use latents of a Wan 2.1 model"
            )

    def _check_frames(self, frames: Tensor) -> None:
        if frames.ndim != 5 or frames.shape[2] != RGB or frames.shape[1] % self.temporal_stride != 1:
            raise BadInput(
                f"clips need 1 + {self.temporal_stride} * k RGB pixel frames, b f c h w, but got "
                f"{tuple(frames.shape)}; cut the clip to such a length"
            )
        if frames.shape[3] % self.spatial_stride or frames.shape[4] % self.spatial_stride:
            raise BadInput(
                f"frames need height and width in multiples of {self.spatial_stride}, but got "
                f"{frames.shape[3]} x {frames.shape[4]}; crop or resize the frames"
            )


def _decode_frame(decoder: Any, x: Tensor, cache: list[Any]) -> list[Tensor]:
    """Decode one latent frame into pieces of pixels `b c f h w`, and bring the cache forward.

    ComfyUI decodes a single frame only at the start of a clip, and its layers keep frames of the newest call only. The
    layers before the first temporal upsampling see one frame per call, so we add the frame before it to their cache.
    """
    # These layers work at the latents' own size. Keeping the entries of the others would cost a second cache.
    old = [entry if _of_size(entry, x) else None for entry in cache]
    out = decoder(x, feat_cache=cache, feat_idx=[0])
    for i, (before, after) in enumerate(zip(old, cache, strict=True)):
        if before is not None and after.shape[2] == 1:
            cache[i] = torch.cat((before[:, :, -1:], after), dim=2)
    # Before ComfyUI 0.18 the decoder returned a tensor, since then a list of tensors.
    return out if isinstance(out, list) else [out]


def _of_size(entry: Any, x: Tensor) -> bool:
    return torch.is_tensor(entry) and entry.shape[-2:] == x.shape[-2:]


def _empty_cache(decoder: Any) -> DecodeState:
    return (None,) * sum(isinstance(module, CausalConv3d) for module in decoder.modules())


def _current(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
