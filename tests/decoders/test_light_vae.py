"""LightVAE, a Wan VAE of a quarter of the widths: its published shapes load and stream as any Wan VAE's."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file
from vae_parts import decode_pieces, decode_whole, random_latents, random_vae

from sdvg_core.decoders.vae_files import open_vae
from sdvg_core.decoders.wan_vae import load_wan_vae
from sdvg_core.decoders.wan_vae_files import wan_vae_to_original

BASE = 24
PUBLISHED_BYTES, HEADER = 32_160_476, 20_464
"""Of the published file, in float32; 194 tensors need a header of about that length."""


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLWan:
    return random_vae({"base_dim": BASE}, torch.float32)


@pytest.fixture(scope="module")
def light_file(vae, tmp_path_factory):
    path = tmp_path_factory.mktemp("light") / "lightvaew2_1.safetensors"
    save_file(wan_vae_to_original(vae.state_dict()), path)
    return path


def test_the_size_is_that_of_the_published_file(vae, light_file):
    assert sum(p.nbytes for p in vae.parameters()) == PUBLISHED_BYTES - HEADER
    assert abs(light_file.stat().st_size - PUBLISHED_BYTES) < 100
    header = open_vae(light_file)
    assert (header.latent_channels, header.decoder_base, header.is_tae) == (16, BASE, False)


def test_it_streams_to_the_bit(vae, light_file):
    latents = random_latents(3)
    pieces, _ = decode_pieces(load_wan_vae(light_file), latents, [1, 2])
    assert torch.equal(pieces, decode_whole(vae, latents))
    assert pieces.std() > 0.01
