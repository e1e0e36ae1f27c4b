"""Codecs between latents and pixel frames, with the decode state as a value."""

from .wan_vae import VaeLayers, WanCodec, load_wan_vae
from .wan_vae_keys import wan_vae_to_original

__all__ = ["VaeLayers", "WanCodec", "load_wan_vae", "wan_vae_to_original"]
