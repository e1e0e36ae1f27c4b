"""A TAEHV of any widths on a VAE wire. ComfyUI's own class for one has the published widths and no other.

It carries its kind, so that the sampler need not be told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import comfy.model_management as mm
import torch
from comfy.latent_formats import Wan21
from comfy.sd import VAE
from torch import Tensor

from ...sdvg_core.decoders import TaeKind
from ...sdvg_core.decoders.taehv import load_taehv_network
from ...sdvg_core.decoders.taehv_net import Taehv
from ...sdvg_core.errors import BadInput
from .residency import patcher_of
from .vae import LATENT_CHANNELS, RGB, ComfyCodec, codec_of


class HostJudge(VAE):
    """A TAEHV's decoder as ComfyUI's VAE: the sampler, VAE Decode and Select VAE Device take it.

    `first_stage_model`: our network, which has no `decode`; so nothing of the base class that runs it is used.
    """

    def __init__(self, net: Taehv, kind: TaeKind) -> None:
        # The base class's own would look for a class of ComfyUI's that fits the weights.
        self.first_stage_model, self.tae_kind = net, kind
        self.device, self.output_device = mm.vae_device(), mm.intermediate_device()
        self.vae_dtype = next(net.parameters()).dtype
        self.working_dtypes = [self.vae_dtype]
        self.patcher = patcher_of(net, load_device=self.device, offload_device=mm.vae_offload_device())
        self.latent_channels, self.latent_dim, self.output_channels = LATENT_CHANNELS, 3, RGB
        across, along = ComfyCodec.spatial_stride, ComfyCodec.temporal_stride
        self.upscale_ratio = (lambda count: max(0, along * count - along + 1), across, across)
        self.downscale_ratio = (lambda count: max(0, (count + along - 1) // along), across, across)
        self.size = None

    def decode(self, samples_in: Tensor, vae_options: Any = None) -> Tensor:
        """Return the pixel frames `b f h w c` of a LATENT's samples `b c t h w`."""
        mm.load_models_gpu([self.patcher])
        frames, _ = codec_of(self, self.tae_kind).decode(Wan21().process_in(samples_in.float()))
        return frames.movedim(2, -1).to(self.output_device)

    def decode_tiled(self, samples: Tensor, *sizes: Any, **more: Any) -> Tensor:
        """Return the same; the network is too small to need tiles."""
        return self.decode(samples)

    def encode(self, *frames: Any, **more: Any) -> NoReturn:
        """Refuse, for there is only a decoder."""
        raise BadInput("a judge only decodes, but it was asked to encode; wire in the VAE of Wan 2.1")

    encode_tiled = encode


def load_host_judge(path: str | Path) -> HostJudge:
    """Load a TAEHV in float32 onto the offload device. Raises `BadInput` if it cannot be used."""
    net, kind = load_taehv_network(path, torch.float32)
    return HostJudge(net.to(mm.vae_offload_device()), kind)
