"""The VAE's layers of every kind: the same pixels, the same kind of state, no copy of what is given."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm, WanUpsample
from torch.utils._python_dispatch import TorchDispatchMode
from vae_parts import FAST, SMALL, codec_of, decode_pieces, random_frames, random_latents, random_vae, tensors

from sdvg_core.decoders import load_wan_vae
from sdvg_core.decoders.wan_vae_planes import PlanarConv, PlanarNorm, PlanarUpsample, planar_conv
from sdvg_core.devices.execution import VaeLayers

RELEASED = {"base_dim": 4}
STRIDED = 2  # of the encoder, in time

# --- in a GPU's order


@pytest.mark.parametrize("layers", FAST)
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=["small", "released"])
def test_the_pixels_and_latents_are_the_same_to_rounding(sizes, layers):
    """In double precision: what is left is the rounding of the float32 results."""
    vae = random_vae(sizes)
    plain, fast = codec_of(vae), codec_of(vae, layers=layers)
    expected, _ = plain.decode(random_latents(5))
    made, _ = decode_pieces(fast, random_latents(5), [2, 3])
    assert expected.std() > 0.01
    assert (made - expected).abs().max() < 5e-7
    assert (fast.encode(expected) - plain.encode(expected)).abs().max() < 5e-6


@pytest.mark.parametrize("scale", [1e-3, 1, 500])
def test_the_length_of_a_pixel_in_half_precision_is_taken_in_a_wider_one(scale):
    """Catches squares in half precision, which are infinite from 256 on and 0 below 2e-4."""
    x = (torch.randn(1, 96, 2, 3, 4, generator=torch.Generator().manual_seed(0)) * scale).half()
    theirs = WanRMS_norm(96, images=False)
    expected = theirs.double()(x.double())
    made = PlanarNorm(theirs.half())(x)
    assert made.dtype == torch.float16
    assert (made.double() - expected).abs().max() < 4e-3
    assert PlanarNorm(theirs)(torch.zeros_like(x)).abs().max() == 0


def test_channels_are_last_in_the_weights_and_in_what_they_are_given():
    """What comes out of a convolution then is the kernels' choice; those of GPUs follow."""
    codec = codec_of(random_vae(RELEASED), layers="channels-last")
    convolutions = [m.weight for m in codec._vae.modules() if isinstance(m, torch.nn.Conv3d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last_3d) for w in convolutions)
    given = []
    codec._vae.post_quant_conv.register_forward_pre_hook(lambda _, arguments: given.extend(arguments))
    codec.decode(random_latents(3))
    assert len(given) == 3
    assert all(z.is_contiguous(memory_format=torch.channels_last_3d) for z in given)


def test_a_planes_convolution_reads_its_weights_where_they_lie_with_channels_last():
    codec = codec_of(random_vae(RELEASED), layers="planes")
    planar = [m for m in codec._vae.modules() if isinstance(m, PlanarConv)]
    assert len(planar) == sum(isinstance(m, torch.nn.Conv3d) for m in codec._vae.modules()) - STRIDED
    for conv in planar:
        plane = conv.weight.transpose(1, 2).flatten(1, 2)
        assert plane.data_ptr() == conv.weight.data_ptr()
        assert plane.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_planar_convolution_is_diffusers_own_after_any_number_of_frames(before):
    """Catches zeros behind the frames before instead of in front of them, and sides swapped."""
    theirs = WanCausalConv3d(4, 6, (3, 3, 5), padding=(1, 1, 2)).double()
    x, earlier = torch.randn(1, 4, 3, 6, 7).double(), torch.randn(1, 4, before, 6, 7).double()
    given = earlier if before else None
    torch.testing.assert_close(PlanarConv(theirs)(x, given), theirs(x, given))


def test_doubling_is_exact_in_half_precision():
    x = torch.randn(2, 3, 4, 5).half()
    theirs = WanUpsample(scale_factor=(2.0, 2.0), mode="nearest-exact")
    assert torch.equal(PlanarUpsample()(x), theirs(x))


@pytest.mark.parametrize("layers", FAST)
@pytest.mark.parametrize("cut", [[3, 3, 3], [1, 8]], ids=str)
def test_a_clip_is_decoded_in_pieces_to_the_same_bits(cut, layers):
    codec = codec_of(random_vae(RELEASED, torch.float32), layers=layers)
    pieces, state = decode_pieces(codec, random_latents(9), cut)
    assert torch.equal(pieces, codec.decode(random_latents(9))[0])
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))


class Copies(TorchDispatchMode):
    """Notes every operation that copies all of a tensor it was told of, and every one that writes into it."""

    def __init__(self, watched):
        super().__init__()
        self.watched = {t.untyped_storage()._cdata for t in watched}
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        given = [t for t in args if torch.is_tensor(t) and t.untyped_storage()._cdata in self.watched]
        name = op.name().removeprefix("aten::").split(".")[0]
        if given and (name in ("clone", "_to_copy", "copy", "constant_pad_nd") or name.endswith("_")):
            self.seen.append(name)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", get_args(VaeLayers))
def test_the_state_is_read_where_it_lies_and_never_copied(layers):
    """A state is nearly a gigabyte at full size. Each frame of it goes into its convolution's input, once."""
    codec = codec_of(random_vae(RELEASED, torch.float32), layers=layers)
    _, state = codec.decode(random_latents(3))
    before = [t.clone() for t in tensors(state)]
    with Copies(tensors(state)) as copies:
        codec.decode(random_latents(1, seed=2), state)
    assert copies.seen == []
    assert all(torch.equal(now, then) for now, then in zip(tensors(state), before, strict=True))


def test_the_watch_sees_a_copy_and_a_write():
    x = torch.ones(2)
    with Copies([x]) as copies:
        x.clone()
        x.add_(1)
        x + 1
    assert copies.seen == ["clone", "add_"]


# --- lean layers


def test_lean_layers_make_the_same_pixels_and_latents_to_rounding(original_file):
    """In double precision, where what is left is the rounding of the float32 results; another processor's float32
    kernels differ among themselves by more than the two kinds of layers do."""
    lean = load_wan_vae(original_file, layers="lean", dtype=torch.float64)
    ordinary = load_wan_vae(original_file, dtype=torch.float64)
    latents, frames = random_latents(5), random_frames(9)
    assert (decode_pieces(lean, latents, [2, 3])[0] - ordinary.decode(latents)[0]).abs().max() < 5e-7
    assert (lean.encode(frames) - ordinary.encode(frames)).abs().max() < 5e-6


@pytest.mark.parametrize("cut", [[3, 3, 3], [1, 8]], ids=str)
def test_lean_layers_decode_in_pieces_to_the_same_bits(original_file, cut):
    lean = load_wan_vae(original_file, layers="lean")
    assert torch.equal(decode_pieces(lean, random_latents(9), cut)[0], lean.decode(random_latents(9))[0])


def test_the_lean_convolution_is_the_convolution_for_any_batch():
    draw = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(size, generator=draw) for size in ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), (4,)))
    assert (planar_conv(x, weight, bias) - torch.nn.functional.conv3d(x, weight, bias)).abs().max() < 1e-5
