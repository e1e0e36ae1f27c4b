"""A clip in pieces: decoded and encoded as diffusers does it whole, with a state that is a value."""

from __future__ import annotations

import pytest
import torch
from vae_parts import MEAN, STD, decode_pieces, decode_whole, random_frames, random_latents

from sdvg_core.decoders.wan_vae import load_wan_vae
from sdvg_core.errors import BadInput

# --- decode


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
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


@pytest.mark.parametrize("cut", [[9], [3, 3, 3], [1] * 9, [2, 5, 2], [1, 8]], ids=str)
def test_decoding_in_any_pieces_is_diffusers_decoding_of_the_whole_clip(codec, vae, cut):
    latents = random_latents(9)
    assert torch.equal(decode_pieces(codec, latents, cut)[0], decode_whole(vae, latents))


def test_the_first_latent_frame_is_one_pixel_frame_and_each_later_one_is_four(codec):
    first, state = codec.decode(random_latents(1))
    later, _ = codec.decode(random_latents(3), state)
    assert first.shape == (1, 1, 3, 32, 48)
    assert later.shape == (1, 12, 3, 32, 48)


def test_a_rejected_candidate_leaves_the_given_state_bit_identical(codec):
    """Catches a cache that is written into, and a list that is handed on instead of copied."""
    latents = random_latents(6)
    _, state = codec.decode(latents[:, :, :3])
    entries = list(state)
    values = [entry.clone() if torch.is_tensor(entry) else entry for entry in state]
    alone, _ = codec.decode(latents[:, :, 3:], state)

    for seed in (7, 8):
        codec.decode(random_latents(3, seed=seed), state)

    assert all(now is before for now, before in zip(state, entries, strict=True))
    for now, before in zip(state, values, strict=True):
        assert torch.equal(now, before) if torch.is_tensor(before) else now == before
    after, _ = codec.decode(latents[:, :, 3:], state)
    assert torch.equal(after, alone)


def test_the_state_after_one_latent_frame_can_be_continued_twice(codec):
    """The cache entries that only mark the first frame must not be used up by a candidate."""
    latents = random_latents(3)
    _, state = codec.decode(latents[:, :, :1])
    codec.decode(random_latents(2, seed=5), state)
    rest, _ = codec.decode(latents[:, :, 1:], state)
    whole, _ = codec.decode(latents)
    assert torch.equal(rest, whole[:, 1:])


def test_the_state_is_a_tuple_of_tensors_that_pin_no_larger_storage(codec):
    _, state = codec.decode(random_latents(4))
    tensors = [entry for entry in state if torch.is_tensor(entry)]
    assert isinstance(state, tuple)
    assert len(tensors) == 32
    assert all(t.shape[2] == 2 for t in tensors)
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)


def test_nothing_stays_behind_in_the_model(codec):
    before = set(vars(codec._vae))
    codec.decode(random_latents(2))
    codec.encode(random_frames(5))
    assert set(vars(codec._vae)) == before
    assert not hasattr(codec._vae, "_feat_map")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_latents_of_any_dtype_are_decoded_in_the_codecs_own(original_file, dtype):
    codec = load_wan_vae(original_file, dtype=torch.bfloat16)
    frames, state = codec.decode(random_latents(2).to(dtype))
    assert frames.dtype == torch.float32
    assert codec.encode(frames).dtype == torch.float32
    assert {entry.dtype for entry in state if torch.is_tensor(entry)} == {torch.bfloat16}
    assert frames.min() >= 0
    assert frames.max() <= 1


# --- encode


@pytest.mark.parametrize("count", [1, 5, 13])
def test_encoding_is_the_normalised_mode_of_diffusers_posterior(codec, vae, count):
    frames = random_frames(count)
    with torch.inference_mode():
        mode = vae.encode((frames * 2 - 1).movedim(1, 2)).latent_dist.mode()
    latents = codec.encode(frames)
    assert latents.shape == (1, 16, 1 + (count - 1) // 4, 4, 6)
    assert torch.equal(latents, (mode - MEAN) / STD)


def test_every_encode_starts_afresh(codec):
    """Catches an encoder cache that survives the call, as re-anchoring encodes one frame at a time."""
    alone = codec.encode(random_frames(1))
    codec.encode(random_frames(9))
    assert torch.equal(codec.encode(random_frames(1)), alone)


@pytest.mark.parametrize(
    "shape, words",
    [
        ((1, 4, 3, 16, 24), "1 \\+ 4 \\* k RGB pixel frames"),
        ((1, 0, 3, 16, 24), "1 \\+ 4 \\* k RGB pixel frames"),
        ((1, 5, 4, 16, 24), "RGB"),
        ((1, 5, 3, 16, 20), "multiples of 8, but got 16 x 20"),
    ],
)
def test_frames_of_another_size_are_refused(codec, shape, words):
    with pytest.raises(BadInput, match=words):
        codec.encode(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(1, 48, 3, 2, 3), (1, 16, 0, 2, 3), (16, 3, 2, 3)])
def test_latents_of_another_model_are_refused(codec, shape):
    with pytest.raises(BadInput, match="16 channels"):
        codec.decode(torch.zeros(shape))
