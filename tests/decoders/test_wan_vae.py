import json
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

from sdvg_core.decoders import WanCodec, load_wan_vae, wan_vae_to_original
from sdvg_core.decoders.wan_vae_planes import planar_conv
from sdvg_core.decoders.wan_vae_shapes import wan_vae_shapes
from sdvg_core.decoders.wan_vae_sizes import WAN_MEAN, WAN_STD, read_sizes
from sdvg_core.errors import BadInput
from sdvg_core.weights import TensorInfo, WeightFile

torch.set_num_threads(1)

MEAN = torch.tensor(WAN_MEAN).view(1, -1, 1, 1, 1)
STD = torch.tensor(WAN_STD).view(1, -1, 1, 1, 1)


def make_vae(**sizes):
    """A VAE with random weights, none of them zero, so that every layer and every cache entry matters."""
    vae = AutoencoderKLWan(**{"base_dim": 4, **sizes}).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    for parameter in vae.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return vae


@pytest.fixture(scope="module")
def vae():
    return make_vae()


@pytest.fixture(scope="module")
def original_file(vae, tmp_path_factory):
    path = tmp_path_factory.mktemp("vae") / "wan_2.1_vae.safetensors"
    save_file(wan_vae_to_original(vae.state_dict()), path)
    return path


@pytest.fixture(scope="module")
def codec(original_file):
    return load_wan_vae(original_file)


def random_latents(frames, seed=1):
    # Not smaller: below about 16 pixels a 1x1x1 convolution rounds differently with the number of frames, and
    # diffusers gives it all frames at once.
    return torch.randn(1, 16, frames, 4, 6, generator=torch.Generator().manual_seed(seed))


def random_frames(count):
    return torch.rand(1, count, 3, 32, 48, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def decode_whole(vae, latents, mean=MEAN, std=STD):
    """What diffusers makes of the whole clip, as frames in [0, 1]."""
    video = vae.decode(latents * std + mean).sample
    return (video.movedim(2, 1) + 1) / 2


def decode_pieces(codec: WanCodec, latents, cut):
    state, pieces = None, []
    for piece in latents.split(cut, dim=2):
        frames, state = codec.decode(piece, state)
        pieces.append(frames)
    return torch.cat(pieces, dim=1)


# --- decode


@pytest.mark.parametrize("cut", [[9], [3, 3, 3], [1] * 9, [2, 5, 2], [1, 8]], ids=str)
def test_decoding_in_any_pieces_is_diffusers_decoding_of_the_whole_clip(codec, vae, cut):
    latents = random_latents(9)
    assert torch.equal(decode_pieces(codec, latents, cut), decode_whole(vae, latents))


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


# --- files


def as_pth(vae, folder):
    path = folder / "Wan2.1_VAE.pth"
    torch.save(wan_vae_to_original(vae.state_dict()), path)
    return path


def as_wrapped(vae, folder):
    path = folder / "wrapped.safetensors"
    save_file({f"model.{name}": t for name, t in wan_vae_to_original(vae.state_dict()).items()}, path)
    return path


def as_diffusers_folder(vae, folder):
    vae.save_pretrained(folder)
    return folder


def as_diffusers_repository(vae, folder):
    vae.save_pretrained(folder / "vae")
    return folder


def as_diffusers_file_alone(vae, folder):
    path = folder / "diffusion_pytorch_model.safetensors"
    save_file(vae.state_dict(), path)
    return path


LAYOUTS = [as_pth, as_wrapped, as_diffusers_folder, as_diffusers_repository, as_diffusers_file_alone]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_published_layout_holds_the_same_codec(vae, tmp_path, layout):
    codec = load_wan_vae(layout(vae, tmp_path))
    latents = random_latents(3)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents))
    assert (codec.latent_channels, codec.temporal_stride, codec.spatial_stride) == (16, 4, 8)


# Read off the original release; shapes for a base width of 4.
ORIGINAL_NAMES = {
    "conv1.weight": (32, 32, 1, 1, 1),
    "conv2.bias": (16,),
    "encoder.conv1.weight": (4, 3, 3, 3, 3),
    "encoder.downsamples.0.residual.0.gamma": (4, 1, 1, 1),
    "encoder.downsamples.2.resample.1.weight": (4, 4, 3, 3),
    "encoder.downsamples.3.residual.2.weight": (8, 4, 3, 3, 3),
    "encoder.downsamples.3.residual.3.gamma": (8, 1, 1, 1),
    "encoder.downsamples.3.residual.6.weight": (8, 8, 3, 3, 3),
    "encoder.downsamples.3.shortcut.weight": (8, 4, 1, 1, 1),
    "encoder.downsamples.5.time_conv.weight": (8, 8, 3, 1, 1),
    "encoder.downsamples.10.residual.6.bias": (16,),
    "encoder.middle.1.norm.gamma": (16, 1, 1),
    "encoder.middle.1.to_qkv.weight": (48, 16, 1, 1),
    "encoder.head.0.gamma": (16, 1, 1, 1),
    "encoder.head.2.weight": (32, 16, 3, 3, 3),
    "decoder.conv1.weight": (16, 16, 3, 3, 3),
    "decoder.middle.0.residual.0.gamma": (16, 1, 1, 1),
    "decoder.middle.2.residual.6.weight": (16, 16, 3, 3, 3),
    "decoder.upsamples.3.time_conv.weight": (32, 16, 3, 1, 1),
    "decoder.upsamples.3.resample.1.weight": (8, 16, 3, 3),
    "decoder.upsamples.4.shortcut.weight": (16, 8, 1, 1, 1),
    "decoder.upsamples.7.time_conv.weight": (32, 16, 3, 1, 1),
    "decoder.upsamples.11.resample.1.bias": (4,),
    "decoder.upsamples.14.residual.6.weight": (4, 4, 3, 3, 3),
    "decoder.head.0.gamma": (4, 1, 1, 1),
    "decoder.head.2.weight": (3, 4, 3, 3, 3),
}

# Siblings of one shape, where only the place tells them apart.
PLACES = {
    "encoder.downsamples.0.residual.3.gamma": "encoder.down_blocks.0.norm2.gamma",
    "encoder.middle.0.residual.2.weight": "encoder.mid_block.resnets.0.conv1.weight",
    "encoder.middle.2.residual.6.weight": "encoder.mid_block.resnets.1.conv2.weight",
    "decoder.upsamples.1.residual.2.weight": "decoder.up_blocks.0.resnets.1.conv1.weight",
    "decoder.upsamples.13.residual.6.weight": "decoder.up_blocks.3.resnets.1.conv2.weight",
}


def test_the_original_names_are_those_of_the_release(vae):
    """A map that is wrong the same way in both directions would pass every round trip; names do not."""
    ours = vae.state_dict()
    original = wan_vae_to_original(ours)
    shapes = {name: tuple(t.shape) for name, t in original.items()}
    assert {name: shapes.get(name) for name in ORIGINAL_NAMES} == ORIGINAL_NAMES
    assert all(original[old] is ours[new] for old, new in PLACES.items())
    assert len(original) == 194


def test_other_widths_depths_and_strides_come_from_the_shapes(tmp_path):
    vae = make_vae(base_dim=8, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True])
    save_file(wan_vae_to_original(vae.state_dict()), tmp_path / "small.safetensors")
    codec = load_wan_vae(tmp_path / "small.safetensors")
    latents = random_latents(3)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents))
    assert (codec.temporal_stride, codec.spatial_stride) == (2, 4)


def test_the_released_size_is_read_off_the_shapes():
    with torch.device("meta"):
        vae = AutoencoderKLWan()
    info = {name: TensorInfo(tuple(t.shape), t.dtype) for name, t in vae.state_dict().items()}
    sizes = read_sizes(WeightFile(Path("vae"), "", info, vae.state_dict().__getitem__, {n: n for n in info}))
    assert (sizes.encoder_base, sizes.decoder_base, sizes.latent_channels) == (96, 96, 16)
    assert (sizes.multipliers, sizes.res_blocks) == ((1, 2, 4, 4), 2)
    assert sizes.temporal_downsample == (False, True, True)


@pytest.mark.parametrize("owner, used", [("AutoencoderKLWan", True), ("WanTransformer3DModel", False)])
def test_latent_statistics_come_from_the_vaes_own_config_only(vae, tmp_path, owner, used):
    config = {"_class_name": owner, "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    codec = load_wan_vae(as_diffusers_file_alone(vae, tmp_path))
    latents = random_latents(1)
    mean, std = (torch.zeros(1), torch.ones(1)) if used else (MEAN, STD)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents, mean, std))


# --- refusals


def without(*names):
    return lambda weights: {name: t for name, t in weights.items() if name not in names}


LOST = ("decoder.upsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.bias")
SPOILED = {
    "Wan 2.2 5B \\(48\\)": lambda w: {**w, "conv2.weight": torch.zeros(48, 48, 1, 1, 1)},
    "holds no video VAE": lambda w: {"blocks.0.self_attn.q.weight": torch.zeros(4, 4)},
    "is an image VAE": lambda w: {
        "encoder.conv_in.weight": torch.zeros(8, 3, 3, 3),
        "encoder.down_blocks.0.resnets.0.conv1.weight": torch.zeros(8, 8, 3, 3),
    },
    "lacks decoder.up_blocks.0.resnets.0.conv1.weight, decoder.up_blocks.0.resnets.0.conv1.bias;": without(*LOST),
    "lacks encoder.conv_in.weight": without("encoder.conv1.weight"),
    "lacks encoder.down_blocks.4.conv1.weight": without("encoder.downsamples.4.residual.2.weight"),
    "encoder in spoiled.safetensors lacks blocks": lambda w: {
        n: t for n, t in w.items() if not n.startswith(("encoder.downsamples.9.", "encoder.downsamples.10."))
    },
    "has the unknown discriminator.weight": lambda w: {**w, "discriminator.weight": torch.zeros(1)},
    "has another shape for decoder.conv_out.bias": lambda w: {**w, "decoder.head.2.bias": torch.zeros(12)},
    "mean and std of 4 latent channels": lambda w: wan_vae_to_original(make_vae(z_dim=4).state_dict()),
}


@pytest.mark.parametrize("words", SPOILED)
def test_a_file_that_is_not_the_whole_vae_is_refused_by_name(vae, tmp_path, words):
    path = tmp_path / "spoiled.safetensors"
    save_file(SPOILED[words](wan_vae_to_original(vae.state_dict())), path)
    with pytest.raises(BadInput, match=words):
        load_wan_vae(path)


@pytest.mark.parametrize("base", [4, 8, 96])
def test_the_stated_names_and_shapes_are_those_of_the_module(base):
    with torch.device("meta"):
        theirs = wan_vae_to_original(AutoencoderKLWan(base_dim=base).state_dict())
    assert wan_vae_shapes(base) == {name: tuple(tensor.shape) for name, tensor in theirs.items()}


# --- lean layers


def test_lean_layers_make_the_same_pixels_and_latents_to_rounding(original_file):
    """In double precision, where what is left is the rounding of the float32 results; another processor's float32
    kernels differ among themselves by more than the two kinds of layers do."""
    lean = load_wan_vae(original_file, layers="lean", dtype=torch.float64)
    ordinary = load_wan_vae(original_file, dtype=torch.float64)
    latents, frames = random_latents(5), random_frames(9)
    assert (decode_pieces(lean, latents, [2, 3]) - ordinary.decode(latents)[0]).abs().max() < 5e-7
    assert (lean.encode(frames) - ordinary.encode(frames)).abs().max() < 5e-6


@pytest.mark.parametrize("cut", [[3, 3, 3], [1, 8]], ids=str)
def test_lean_layers_decode_in_pieces_to_the_same_bits(original_file, cut):
    lean = load_wan_vae(original_file, layers="lean")
    assert torch.equal(decode_pieces(lean, random_latents(9), cut), lean.decode(random_latents(9))[0])


def test_the_lean_convolution_is_the_convolution_for_any_batch():
    draw = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(size, generator=draw) for size in ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), (4,)))
    assert (planar_conv(x, weight, bias) - torch.nn.functional.conv3d(x, weight, bias)).abs().max() < 1e-5
