"""A clip in pieces: decoded and encoded as diffusers does it whole, with a state that is a value."""

from __future__ import annotations

import pytest
import torch
from vae_parts import MEAN, STD, decode_pieces, decode_whole, random_frames, random_latents

from sdvg_core.decoders.wan_vae import load_wan_vae

# --- decode


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_pixel_that_is_not_finite_is_nan_and_neither_white_nor_black(original_file, bad):
    """Catches: infinity that the last clamp makes white, so that the check of the frames finds nothing."""
    codec = load_wan_vae(original_file)
    codec._vae.decoder.conv_out.bias.data[1] = bad
    frames, _ = codec.decode(random_latents(2))
    assert frames[:, :, 1].isnan().all()
    assert frames[:, :, [0, 2]].isfinite().all()


def test_half_precision_latents_are_normalised_in_float32(original_file):
    """Catches: the mean taken off, or the result returned, in the dtype of the layers."""
    codec = load_wan_vae(original_file, dtype=torch.bfloat16)
    latents = codec.encode(random_frames(1))
    before = latents * STD + MEAN
    assert latents.dtype == torch.float32
    assert torch.allclose(before, before.bfloat16().float(), rtol=1e-5, atol=1e-5)


def test_decoding_in_pieces_is_diffusers_decoding_of_the_whole_clip(codec, vae):
    latents = random_latents(9)
    assert torch.equal(decode_pieces(codec, latents, [2, 5, 2])[0], decode_whole(vae, latents))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_latents_of_any_dtype_are_decoded_in_the_codecs_own(original_file, dtype):
    codec = load_wan_vae(original_file, dtype=torch.bfloat16)
    frames, state = codec.decode(random_latents(2).to(dtype))
    assert frames.dtype == torch.float32
    assert codec.encode(frames).dtype == torch.float32
    assert {entry.dtype for entry in state if torch.is_tensor(entry)} == {torch.bfloat16}
    assert frames.min() >= 0
    assert frames.max() <= 1


# --- encode


@pytest.mark.parametrize("count", [1, 13])
def test_encoding_is_the_normalised_mode_of_diffusers_posterior(codec, vae, count):
    frames = random_frames(count)
    with torch.inference_mode():
        mode = vae.encode((frames * 2 - 1).movedim(1, 2)).latent_dist.mode()
    latents = codec.encode(frames)
    assert latents.shape == (1, 16, 1 + (count - 1) // 4, 4, 6)
    assert torch.equal(latents, (mode - MEAN) / STD)
