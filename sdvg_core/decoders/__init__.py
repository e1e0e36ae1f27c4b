"""Codecs between latents and pixel frames, with the decode state as a value."""

from typing import Literal, get_args

TaeKind = Literal["taew2_1", "lighttaew2_1"]
TAE_KINDS: tuple[TaeKind, ...] = get_args(TaeKind)
StatedKind = Literal["auto", "taew2_1", "lighttaew2_1"]
"""The kind stated by the user; `auto`: from the file's digest, then its name."""
DecoderName = Literal["wan", "lightvae", "tae"]
