"""A clip in pieces, by any layers and compiled: as diffusers does it whole, with a state that is a value."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from tae_parts import codec_of as tae_codec_of
from tae_parts import random_tae
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from vae_parts import (
    MEAN,
    SMALL,
    STD,
    assert_still_a_value,
    codec_of,
    decode_pieces,
    decode_whole,
    random_frames,
    random_latents,
    random_vae,
    tensors,
)

from sdvg_core.decoders import wan_vae
from sdvg_core.decoders.open import load_vae
from sdvg_core.decoders.planes import PlanarNorm
from sdvg_core.decoders.taehv import TaehvCodec
from sdvg_core.decoders.wan_vae import WAN_MEAN, WAN_STD, WanCodec
from sdvg_core.errors import BadInput
from sdvg_core.settings.execution import VaeLayers
from tests.support.tiny import can_compile


def test_latents_have_the_published_statistics():
    """Diffusers has them too. Catches: a wrong digit, which tests with our own figures cannot see."""
    published = AutoencoderKLWan(**SMALL).config
    assert list(WAN_MEAN) == published.latents_mean
    assert list(WAN_STD) == published.latents_std


# --- decode


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_pixel_that_is_not_finite_is_nan(original_file, bad):
    """Catches: infinity that the last clamp makes white, so that the check of the frames finds nothing."""
    codec = load_vae(original_file)
    codec._vae.decoder.conv_out.bias.data[1] = bad
    frames, _ = codec.decode(random_latents(2))
    assert frames[:, :, 1].isnan().all()
    assert frames[:, :, [0, 2]].isfinite().all()


def test_half_precision_latents_are_normalised_in_float32(original_file):
    """Catches: the mean taken off, or the result returned, in the dtype of the layers."""
    codec = load_vae(original_file, dtype=torch.bfloat16)
    latents = codec.encode(random_frames(1))
    before = latents * STD + MEAN
    assert latents.dtype == torch.float32
    assert torch.allclose(before, before.bfloat16().float(), rtol=1e-5, atol=1e-5)


def test_pieces_decode_as_diffusers_decodes_whole_clips(codec, vae):
    latents = random_latents(9)
    assert torch.equal(decode_pieces(codec, latents, [2, 5, 2])[0], decode_whole(vae, latents))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_latents_are_decoded_in_the_codecs_dtype(original_file, dtype):
    frames, state = load_vae(original_file, dtype=torch.bfloat16).decode(random_latents(2).to(dtype))
    assert frames.dtype == torch.float32
    assert {entry.dtype for entry in state if torch.is_tensor(entry)} == {torch.bfloat16}
    assert frames.min() >= 0
    assert frames.max() <= 1


# --- encode


@pytest.mark.parametrize("count", [1, 13])
def test_encoding_is_diffusers_normalised_mode(codec, vae, count):
    frames = random_frames(count)
    with torch.inference_mode():
        mode = vae.encode((frames * 2 - 1).movedim(1, 2)).latent_dist.mode()
    latents = codec.encode(frames)
    assert latents.shape == (1, 16, 1 + (count - 1) // 4, 4, 6)
    assert torch.equal(latents, (mode - MEAN) / STD)


# --- layers in a GPU's order

RELEASED = {"base_dim": 4}


@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=["small", "released"])
def test_planar_layers_compute_the_same_to_rounding(sizes):
    """In double precision: what is left is the rounding of the float32 results."""
    vae = random_vae(sizes)
    plain = codec_of(vae, layers="diffusers")
    planar = codec_of(vae, layers="planes")
    expected, _ = plain.decode(random_latents(5))
    frames, state = decode_pieces(planar, random_latents(5), [2, 3])
    assert torch.equal(frames, planar.decode(random_latents(5))[0])
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))
    assert expected.std() > 0.01
    assert (frames - expected).abs().max() < 5e-7
    assert (planar.encode(expected) - plain.encode(expected)).abs().max() < 5e-6


@pytest.mark.parametrize("scale", [1e-3, 1, 500])
def test_planar_norm_squares_in_a_wider_dtype(scale):
    """Catches squares in half precision, which are infinite from 256 on and 0 below 2e-4."""
    x = (torch.randn(1, 96, 2, 3, 4, generator=torch.Generator().manual_seed(0)) * scale).half()
    norm = WanRMS_norm(96, images=False)
    expected = norm.double()(x.double())
    normalised = PlanarNorm(norm.half())(x)
    assert normalised.dtype == torch.float16
    assert (normalised.double() - expected).abs().max() < 4e-3
    assert PlanarNorm(norm)(torch.zeros_like(x)).abs().max() == 0


class Copies(TorchDispatchMode):
    """Note every operation that copies all of a watched tensor, and every one that writes into it."""

    def __init__(self, watched):
        super().__init__()
        self.watched = {t.untyped_storage()._cdata for t in watched}
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        inputs = [t for t in args if torch.is_tensor(t) and t.untyped_storage()._cdata in self.watched]
        name = op.name().removeprefix("aten::").split(".")[0]
        written = name.endswith("_") and any(args[0] is t for t in inputs)
        if inputs and (name in ("clone", "_to_copy", "copy", "constant_pad_nd") or written):
            self.names.append(name)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", get_args(VaeLayers))
def test_decoding_copies_no_state(layers):
    """Nearly a gigabyte at full size. Each frame of it goes into its convolution's input, once."""
    codec = codec_of(random_vae(RELEASED, torch.float32), layers=layers)
    _, state = codec.decode(random_latents(3))
    before = [t.clone() for t in tensors(state)]
    with Copies(tensors(state)) as copies:
        codec.decode(random_latents(1, seed=2), state)
    assert copies.names == []
    assert all(torch.equal(now, then) for now, then in zip(tensors(state), before, strict=True))


def test_watch_sees_copies_and_writes():
    x = torch.ones(2)
    with Copies([x]) as copies:
        x.clone()
        x.add_(1)
        x + 1
    assert copies.names == ["clone", "add_"]


# --- compiled


def test_compiled_decoder_keeps_the_states_marks(monkeypatch):
    """By a compiler that changes nothing, as a real one takes a minute.

    Catches: what is no tensor in the state, lost: a clip's second latent frame would give one pixel frame again.
    """
    monkeypatch.setattr(wan_vae, "compiled", lambda function, compiler: function)
    vae = random_vae(SMALL)
    latents = random_latents(5)
    assert_still_a_value(codec_of(vae, compiler="eager"), latents, codec_of(vae).decode(latents)[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("layers", ["diffusers", "planes"])
def test_decoder_is_compiled_three_times(layers, fresh_compiler):
    """For the first frame, the second, and all later ones. Catches: code compiled for one number of frames."""
    vae = random_vae(SMALL)
    latents = random_latents(6)
    counter = CompileCounterWithBackend("eager")
    codec = codec_of(vae, layers=layers, compiler=counter)
    state = None
    pieces = []
    counts = []
    for latent in latents.split(1, dim=2):
        piece, state = codec.decode(latent, state)
        pieces.append(piece)
        counts.append(counter.frame_count)
    assert counts == [1, 2, 3, 3, 3, 3]
    frames = torch.cat(pieces, dim=1)
    assert (frames - codec_of(vae).decode(latents)[0]).abs().max() < 5e-7
    assert torch.equal(codec.decode(latents)[0], frames)
    assert counter.frame_count == 3


@pytest.mark.exhaustive  # over a minute of the compiler's
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("layers", ["planes", "diffusers"])
def test_machine_code_keeps_pixels_and_state(layers, fresh_compiler):
    """Catches state entries that are views into a whole input, as the compiler drops the copy that frees it."""
    vae = random_vae(SMALL)
    latents = random_latents(5)
    codec = codec_of(vae, layers=layers, compiler="inductor")
    assert_still_a_value(codec, latents, codec_of(vae).decode(latents)[0])


# --- either codec

Codec = WanCodec | TaehvCodec


@pytest.fixture(scope="module", params=["wan", "taehv"])
def either(request, original_file) -> Codec:
    return load_vae(original_file) if request.param == "wan" else tae_codec_of(random_tae())


@pytest.mark.parametrize("cut", [[3, 3, 3], [1] * 9, [2, 5, 2], [1, 8]], ids=str)
def test_pieces_of_any_length_decode_alike(either: Codec, cut: list[int]) -> None:
    latents = random_latents(9)
    assert torch.equal(decode_pieces(either, latents, cut)[0], either.decode(latents)[0])
    assert torch.equal(latents, random_latents(9)), "the latents are written to"


@pytest.mark.parametrize("before", [1, 3])
def test_rejected_draft_leaves_the_decoder_state(either: Codec, before: int) -> None:
    """Catches a cache that is written into, one that marks the first frame and is used up, and a shared list."""
    latents = random_latents(6)
    _, state = either.decode(latents[:, :, :before])
    entries = list(state)
    values = [entry.clone() if torch.is_tensor(entry) else entry for entry in state]
    alone, _ = either.decode(latents[:, :, before:], state)
    for seed in (7, 8):
        either.decode(random_latents(3, seed=seed), state)
    assert all(now is then for now, then in zip(state, entries, strict=True))
    for now, then in zip(state, values, strict=True):
        assert torch.equal(now, then) if torch.is_tensor(then) else now == then
    assert torch.equal(either.decode(latents[:, :, before:], state)[0], alone)


def test_state_pins_no_larger_storage(either: Codec) -> None:
    _, state = either.decode(random_latents(4))
    assert isinstance(state, tuple)
    assert len(tensors(state)) == (32 if isinstance(either, WanCodec) else 9)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))


def test_every_encode_starts_afresh(either: Codec) -> None:
    """Catches an encoder cache that survives the call, as re-anchoring encodes one frame at a time."""
    alone = either.encode(random_frames(1))
    frames = random_frames(9)
    either.encode(frames)
    assert torch.equal(frames, random_frames(9)), "the frames are written to"
    assert torch.equal(either.encode(random_frames(1)), alone)


@pytest.mark.parametrize(
    "shape, words",
    [
        ((1, 4, 3, 16, 24), "1 \\+ 4 \\* k RGB frames"),
        ((1, 0, 3, 16, 24), "1 \\+ 4 \\* k RGB frames"),
        ((1, 5, 4, 16, 24), "RGB"),
        ((1, 5, 3, 16, 20), "multiples of 8"),
    ],
)
def test_frames_of_another_size_are_refused(either: Codec, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        either.encode(torch.zeros(shape))
