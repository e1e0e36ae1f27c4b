"""Codecs between latents and pixel frames, with the decode state as a value."""
