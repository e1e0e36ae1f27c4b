"""Open and load either autoencoder, a Wan 2.1 VAE of any width or a TAEHV, recognised by tensor names."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..devices.compiling import Backend
from ..errors import BadInput
from ..settings.execution import AUTO, VaeLayers
from ..settings.load import StatedKind, TaeKind
from ..weights.weight_file import WeightFile, check_finite_weights, open_weights
from .taehv import (
    SPATIAL_STRIDE,
    TEMPORAL_STRIDE,
    Taehv,
    TaehvCodec,
    fill_taehv,
    find_taehv,
    is_taehv,
    kind_of,
)
from .wan_vae import WanCodec, empty_wan_vae, open_wan_vae

LIGHT_BASE = 24
"""Base width of LightVAE's decoder, a quarter of the Wan VAE's."""
FAST_NOTE = "Fast decoder (TAEHV): a little rougher than the Wan VAE."


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeHeader:
    """The header of an autoencoder, of a file or of ComfyUI.

    `decoder_base`: base width of a Wan VAE's decoder, None for a TAEHV. `encodes`: whether it has an encoder.
    `tae_kind`: kind of a TAEHV, None for a Wan VAE.
    """

    latent_channels: int
    temporal_stride: int
    spatial_stride: int
    decoder_base: int | None
    encodes: bool
    tae_kind: TaeKind | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WanVaeFile(VaeHeader):
    """The header of a Wan VAE's file, under diffusers' names. `sizes`: arguments for diffusers' class."""

    file: WeightFile
    sizes: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaehvFile(VaeHeader):
    """The header of a TAEHV's file. `net`: its network, on the meta device."""

    tae_kind: TaeKind
    file: WeightFile
    net: Taehv


VaeFile = WanVaeFile | TaehvFile


def open_vae(path: str | Path, *, tae_kind: StatedKind = AUTO) -> VaeFile:
    """Read the header of a Wan 2.1 VAE or a TAEHV, from a file or a diffusers folder, without loading weights.

    `tae_kind`: as stated by the user. Raises `BadInput` if `load_vae` could not load the file, or if a kind is
    stated for a Wan VAE.
    """
    path = Path(path)
    file = open_weights(path / "vae" if (path / "vae").is_dir() else path)
    if is_taehv(file.names):
        kind = kind_of(file.path, tae_kind)
        file, net = find_taehv(file, kind)
        return TaehvFile(
            latent_channels=net.latent_channels,
            temporal_stride=TEMPORAL_STRIDE,
            spatial_stride=SPATIAL_STRIDE,
            decoder_base=None,
            encodes=net.encoder is not None,
            tae_kind=kind,
            file=file,
            net=net,
        )
    if tae_kind != AUTO:
        raise BadInput(f"{file.path.name} is no TAEHV, so tae_kind (--tae-kind) has no effect; leave it out")
    file, sizes = open_wan_vae(file)
    return WanVaeFile(
        latent_channels=sizes["z_dim"],
        temporal_stride=sizes["scale_factor_temporal"],
        spatial_stride=sizes["scale_factor_spatial"],
        decoder_base=sizes["decoder_base_dim"],
        encodes=True,
        tae_kind=None,
        file=file,
        sizes=sizes,
    )


def load_vae(
    source: str | Path | VaeFile,
    *,
    tae_kind: StatedKind = AUTO,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    layers: VaeLayers = "diffusers",
    compiler: Backend | None = None,
) -> WanCodec | TaehvCodec:
    """Load a Wan 2.1 VAE or a TAEHV from a file or from a header by `open_vae`.

    `layers`: see `WanCodec`; for a TAEHV, `planes` means channels last. `compiler`: see `WanCodec` and
    `TaehvCodec`. Raises `BadInput` like `open_vae`, and for NaN or infinity.
    """
    header = source if isinstance(source, VaeHeader) else open_vae(source, tae_kind=tae_kind)
    file = header.file
    if isinstance(header, TaehvFile):
        net = fill_taehv(copy.deepcopy(header.net), file, device, dtype)
        last = layers == "planes"
        return TaehvCodec(net, kind=header.tae_kind, channels_last=last, compiler=compiler, name=file.path.name)
    vae = empty_wan_vae(**header.sizes)
    weights = {name: file[name].to(device, dtype) for name in vae.state_dict()}
    vae.load_state_dict(weights, assign=True)
    check_finite_weights(vae, file.path.name)
    return WanCodec(
        vae,
        temporal_stride=header.temporal_stride,
        spatial_stride=header.spatial_stride,
        layers=layers,
        compiler=compiler,
    )
