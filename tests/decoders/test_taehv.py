"""TAEHV in pieces: what the description of its layers makes of a whole clip, with a state that is a value."""

from __future__ import annotations

import pytest
import torch
from tae_parts import codec_of, random_tae, tae_shapes, whole_decode, whole_encode
from torch._dynamo.testing import CompileCounterWithBackend
from vae_parts import MEAN, STD, assert_still_a_value, decode_pieces, random_frames, random_latents

from sdvg_core.errors import BadInput
from tests.support.tiny import can_compile

ROUNDING = 5e-6
"""Of float32: convolutions over another number of frames add in another order."""


@pytest.fixture(scope="module")
def weights():
    return random_tae()


@pytest.fixture(scope="module")
def codec(weights):
    return codec_of(weights)


# --- decode


def test_pieces_decode_like_the_layers_description(codec, weights):
    """Of the whole clip; the state is nine frames, one for each block of layers that remembers."""
    latents = random_latents(9)
    expected = whole_decode(weights, latents)
    assert expected.std() > 0.1
    frames, state = decode_pieces(codec, latents, [2, 7])
    assert (frames - expected).abs().max() < ROUNDING
    sizes = [(1, 14, 4, 6), (1, 12, 8, 12), (1, 10, 16, 24)]
    assert [entry.shape for entry in state] == [size for size in sizes for _ in range(3)]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_latent_that_is_not_finite_decodes_to_nan(codec, value):
    """Catches: an infinite latent that the limit of latents makes an ordinary one."""
    latents = random_latents(2)
    latents[0, 3, 1, 2, 2] = value
    frames, _ = codec.decode(latents)
    assert frames[:, 0].isfinite().all()
    assert frames[:, 1:].isnan().any()
    assert not frames.isinf().any()


def test_colour_that_overflows_is_nan(weights):
    """Of finite weights. Catches: infinity that the last clamp makes white, so that the run goes on."""
    largest = torch.finfo(torch.float32).max
    last = {name: weights[name].clone() for name in ("decoder.22.weight", "decoder.22.bias")}
    for weight in last.values():
        weight[1] = largest
    frames, _ = codec_of({**weights, **last}).decode(random_latents(2))
    assert frames[:, :, 1].isnan().all()
    assert frames[:, :, [0, 2]].isfinite().all()


def test_kind_decides_which_latents_the_network_sees(weights):
    """`lighttaew2_1` takes those of the Wan VAE's own decoder, `taew2_1` the normalised ones."""
    plain = codec_of(weights)
    scaled = codec_of(weights, "lighttaew2_1")
    latents = random_latents(3)
    assert torch.equal(scaled.decode(latents)[0], plain.decode(latents * STD + MEAN)[0])
    assert (scaled.decode(latents)[0] - plain.decode(latents)[0]).abs().max() > 0.1
    frames = random_frames(5)
    assert torch.equal(scaled.encode(frames), (plain.encode(frames) - MEAN) / STD)
    assert (plain.kind, scaled.kind) == ("taew2_1", "lighttaew2_1")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_half_precision_streams_bit_for_bit(weights, dtype, channels_last):
    """And shows the same picture, to its rounding."""
    half = codec_of(weights, dtype=dtype, channels_last=channels_last)
    latents = random_latents(4)
    frames, state = decode_pieces(half, latents, [1, 3])
    assert torch.equal(frames, half.decode(latents.to(torch.float64))[0])
    assert frames.dtype == half.encode(frames[:, :5]).dtype == torch.float32
    assert {entry.dtype for entry in state} == {half.dtype} == {dtype}
    assert (frames - whole_decode(weights, latents)).abs().max() < (0.01 if dtype == torch.float16 else 0.06)


# --- encode


@pytest.mark.parametrize("count", [1, 13])
def test_encoding_equals_the_layers_description(codec, weights, count):
    """Of the clip with its last frame three times more."""
    frames = random_frames(count)
    latents = codec.encode(frames)
    assert latents.shape == (1, 16, 1 + (count - 1) // 4, 4, 6)
    assert (latents - whole_encode(weights, frames)).abs().max() < ROUNDING


def test_codec_without_encoder_only_decodes(weights):
    shapes = tae_shapes(encoder=None)
    codec = codec_of({name: weights[name] for name in shapes}, name="half.pth")
    assert torch.equal(codec.decode(random_latents(2))[0], codec_of(weights).decode(random_latents(2))[0])
    with pytest.raises(BadInput, match=r"half\.pth has no encoder"):
        codec.encode(random_frames(1))


# --- ways to run it


@pytest.mark.heavy
def test_decoder_is_compiled_once_for_all_frames(weights, fresh_compiler):
    counter = CompileCounterWithBackend("eager")
    latents = random_latents(4)
    frames, _ = decode_pieces(codec_of(weights, channels_last=True, compiler=counter), latents, [1, 1, 2])
    assert counter.frame_count == 1
    assert torch.equal(frames, codec_of(weights, channels_last=True).decode(latents)[0])


MACHINE_CODE = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers"),
]


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=MACHINE_CODE)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
def test_compiled_decoder_keeps_pixels_and_state(weights, backend, fresh_compiler):
    clip = random_latents(4)
    codec = codec_of(weights, dtype=torch.float64, compiler=backend)
    assert_still_a_value(codec, clip, codec_of(weights, dtype=torch.float64).decode(clip)[0])
