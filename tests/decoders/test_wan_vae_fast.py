"""The VAE in a GPU's order, and compiled: the same pixels, the same kind of state, no copy of what is given."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm, WanUpsample
from tiny import can_compile
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from sdvg_core.decoders import VaeLayers, WanCodec
from sdvg_core.decoders.wan_vae_planes import PlanarConv, PlanarNorm, PlanarUpsample
from sdvg_core.decoders.wan_vae_sizes import WAN_MEAN, WAN_STD

# Two resolutions, one step in time: every kind of layer, and few of them, for a compiler is slow.
SMALL = {
    **{"base_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1, "temperal_downsample": [True]},
    **{"scale_factor_temporal": 2, "scale_factor_spatial": 2},
}
RELEASED = {"base_dim": 4}
FAST = ["channels-last", "planes"]
STRIDED = 2  # of the encoder, in time


def random_vae(sizes: dict, dtype=torch.float64):
    """A VAE with random weights near those of a trained one in size, so that pixels are not all black or white."""
    vae = AutoencoderKLWan(**sizes).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    for name, parameter in vae.named_parameters():
        if not name.endswith("gamma"):
            spread = 0.7 / max(parameter[0].numel(), 1) ** 0.5 if parameter.ndim > 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * spread)
    for parameter in vae.parameters():
        parameter.data = parameter.data.to(dtype)
    return vae


def codec_of(vae, **options) -> WanCodec:
    return WanCodec(
        copy.deepcopy(vae),
        mean=WAN_MEAN,
        std=WAN_STD,
        temporal_stride=vae.config.scale_factor_temporal,
        spatial_stride=vae.config.scale_factor_spatial,
        **options,
    )


def latents(frames, seed=1):
    return torch.randn(1, 16, frames, 4, 6, generator=torch.Generator().manual_seed(seed))


def in_pieces(codec, clip, cut):
    state, pieces = None, []
    for piece in clip.split(cut, dim=2):
        frames, state = codec.decode(piece, state)
        pieces.append(frames)
    return torch.cat(pieces, dim=1), state


def tensors(state):
    return [entry for entry in state if torch.is_tensor(entry)]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("layers", FAST)
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=["small", "released"])
def test_the_pixels_and_latents_are_the_same_to_rounding(sizes, layers):
    """In double precision: what is left is the rounding of the float32 results."""
    vae = random_vae(sizes)
    plain, fast = codec_of(vae), codec_of(vae, layers=layers)
    expected, _ = plain.decode(latents(5))
    made, _ = in_pieces(fast, latents(5), [2, 3])
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
    codec.decode(latents(3))
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
    pieces, state = in_pieces(codec, latents(9), cut)
    assert torch.equal(pieces, codec.decode(latents(9))[0])
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
    _, state = codec.decode(latents(3))
    before = [t.clone() for t in tensors(state)]
    with Copies(tensors(state)) as copies:
        codec.decode(latents(1, seed=2), state)
    assert copies.seen == []
    assert all(torch.equal(now, then) for now, then in zip(tensors(state), before, strict=True))


def test_the_watch_sees_a_copy_and_a_write():
    x = torch.ones(2)
    with Copies([x]) as copies:
        x.clone()
        x.add_(1)
        x + 1
    assert copies.seen == ["clone", "add_"]


# --- compiled


@pytest.mark.heavy
@pytest.mark.parametrize("layers", ["diffusers", *FAST])
def test_the_decoder_is_compiled_for_the_first_frame_the_second_and_all_later_ones(layers, fresh_compiler):
    vae, counter, clip = random_vae(SMALL), CompileCounterWithBackend("eager"), latents(6)
    codec = codec_of(vae, layers=layers, compiler=counter)
    state, pieces, counts = None, [], []
    for frame in clip.split(1, dim=2):
        frames, state = codec.decode(frame, state)
        pieces.append(frames)
        counts.append(counter.frame_count)
    assert counts == [1, 2, 3, 3, 3, 3]
    made = torch.cat(pieces, dim=1)
    assert (made - codec_of(vae).decode(clip)[0]).abs().max() < 5e-7
    assert torch.equal(codec.decode(clip)[0], made)
    assert counter.frame_count == 3


@pytest.mark.heavy
def test_any_number_of_decoders_may_be_compiled_in_one_process(fresh_compiler):
    """Catches the compiler giving the decoder up for having been compiled eight times, whatever it was for."""
    counter = CompileCounterWithBackend("eager")
    for made in range(1, 5):
        codec_of(random_vae(SMALL), layers=FAST[made % 2], compiler=counter).decode(latents(3))
        assert counter.frame_count == 3 * made


@pytest.mark.heavy
@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler and Python's headers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, of other parts of torch
@pytest.mark.parametrize("layers", FAST)
def test_compiled_to_machine_code_the_pixels_are_the_same_and_the_state_is_still_a_value(layers, fresh_compiler):
    """Catches state entries that are views into a whole input, as the compiler drops the copy that frees it."""
    vae, clip = random_vae(SMALL), latents(5)
    codec = codec_of(vae, layers=layers, compiler="inductor")
    made, state = in_pieces(codec, clip, [1, 1, 3])
    assert (made - codec_of(vae).decode(clip)[0]).abs().max() < 5e-7
    assert isinstance(state, tuple)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))
    before = [t.clone() for t in tensors(state)]
    alone, _ = codec.decode(latents(2, seed=3), state)
    again, _ = codec.decode(latents(2, seed=3), state)
    assert torch.equal(alone, again)
    assert all(torch.equal(now, then) for now, then in zip(tensors(state), before, strict=True))
