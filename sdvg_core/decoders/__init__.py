"""Codecs between latents and pixel frames, with the decode state as a value."""

from .wan_vae import WanCodec, load_wan_vae
from .wan_vae_keys import wan_vae_to_original

__all__ = ["WanCodec", "load_wan_vae", "wan_vae_to_original"]
