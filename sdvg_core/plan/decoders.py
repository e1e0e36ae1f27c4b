"""What each decoder takes: the Wan VAE, LightVAE (the same network at a quarter of the width), and TAEHV."""

from __future__ import annotations

from collections.abc import Mapping

from ..decoders import JUDGES as JUDGES
from ..decoders import DecoderName as DecoderName
from ..decoders.vae_files import LIGHT_BASE
from ..devices.execution import VaeLayers

PUBLISHED_BASE = 96
"""The narrowest width of the Wan VAE."""

# Seconds for 81 frames at 480p on an H100, over the Wan VAE's 5.5 (LightX2V's figures). LightVAE has a sixteenth of
# the operations, but is bound by memory traffic.
SHARE_OF_SECONDS: Mapping[DecoderName, float] = {"wan": 1.0, "lightvae": 2.1 / 5.5, "tae": 0.25 / 5.5}

# Of the Wan VAE, by powers of its base width; ComfyUI has no diffusers to count them with.
_WAN_PARAMETERS = (1363, 5719, 13709)
_TAE_PARAMETERS = 11_315_539
# The decode state, in values per pixel of a frame: of the Wan VAE per channel of its base width, plus a constant.
_WAN_STATE_PER_BASE, _WAN_STATE_MORE, _TAE_STATE = 24.625, 0.5, 84
# Alive at once while a block is decoded, besides the old state and the new, by VAE layers: values of the VAE's
# dtype, and bytes independent of the dtype, per pixel of a frame, at a base width of 96.
DECODE: Mapping[VaeLayers, tuple[int, int]] = {"diffusers": (2330, 783), "planes": (2137, 0)}
_TAE_DECODE = 960
# The same while a frame is encoded.
ENCODE_VALUES: Mapping[VaeLayers, int] = {"diffusers": 974, "planes": 867}


def base_width(decoder: DecoderName, wan_base: int) -> int:
    """Return the narrowest width of a Wan VAE. `wan_base`: that of the run's own."""
    return LIGHT_BASE if decoder == "lightvae" else wan_base


def decoder_bytes(decoder: DecoderName, wan_base: int, itemsize: int) -> int:
    """Return the bytes of a decoder's weights, its encoder included."""
    if decoder == "tae":
        return _TAE_PARAMETERS * itemsize
    base = base_width(decoder, wan_base)
    first, second, third = _WAN_PARAMETERS
    return (first + second * base + third * base**2) * itemsize


def decode_state_bytes(decoder: DecoderName, wan_base: int, pixels: int, itemsize: int) -> int:
    """Return the bytes of one decode state for frames of `pixels` pixels."""
    if decoder == "tae":
        return _TAE_STATE * pixels * itemsize
    return int((_WAN_STATE_PER_BASE * base_width(decoder, wan_base) + _WAN_STATE_MORE) * pixels) * itemsize


def decode_working_bytes(decoder: DecoderName, wan_base: int, pixels: int, itemsize: int, layers: VaeLayers) -> int:
    """Return the bytes of temporary buffers while a block is decoded."""
    if decoder == "tae":
        return _TAE_DECODE * pixels * itemsize
    values, whatever = DECODE[layers]
    return int((values * itemsize * base_width(decoder, wan_base) / PUBLISHED_BASE + whatever) * pixels)
