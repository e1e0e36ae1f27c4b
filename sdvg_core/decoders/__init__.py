"""Codecs between latents and pixel frames, with the decode state as a value."""

from .taehv import TaehvCodec, load_taehv, load_taehv_network, taehv_from_weights
from .taehv_kinds import TAE_KINDS, StatedKind, TaeKind, kind_of
from .taehv_net import Taehv
from .taehv_sizes import open_taehv
from .vae_files import VaeHeader, load_vae, open_vae
from .wan_vae import WanCodec, load_wan_vae
from .wan_vae_keys import wan_vae_to_original

__all__ = [
    "TAE_KINDS",
    "StatedKind",
    "TaeKind",
    "Taehv",
    "TaehvCodec",
    "VaeHeader",
    "WanCodec",
    "kind_of",
    "load_taehv",
    "load_taehv_network",
    "load_vae",
    "load_wan_vae",
    "open_taehv",
    "open_vae",
    "taehv_from_weights",
    "wan_vae_to_original",
]
