"""Files of either decoder: which load, whose latents they want, and what is refused by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tae_parts import DECODER, PUBLISHED, codec_of, random_tae, tae_shapes
from vae_parts import decode_whole, make_vae, random_frames, random_latents, random_vae

from sdvg_core.decoders.open import LIGHT_BASE, load_vae, open_vae
from sdvg_core.decoders.taehv import PUBLISHED_TAES, TaehvCodec, find_taehv, kind_of
from sdvg_core.decoders.wan_vae import WanCodec
from sdvg_core.errors import BadInput
from sdvg_core.weights.weight_file import TensorInfo, WeightFile
from tests.support.random_set import wan_vae_to_original

NAME = "taew2_1.safetensors"


@pytest.fixture(scope="module")
def weights():
    return random_tae()


def saved(weights, folder: Path, name=NAME) -> Path:
    path = folder / name
    if path.suffix == ".pth":
        torch.save(dict(weights), path)
    else:
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, path)
    return path


# --- what loads


@pytest.mark.parametrize("name, prefix", [(NAME, ""), ("taew2_1.pth", "first_stage_model.")])
def test_layouts_of_taehv_hold_the_same_codec(weights, tmp_path, name, prefix):
    codec = load_vae(saved({prefix + key: tensor for key, tensor in weights.items()}, tmp_path, name))
    expected = codec_of(weights)
    assert torch.equal(codec.decode(random_latents(2))[0], expected.decode(random_latents(2))[0])
    assert torch.equal(codec.encode(random_frames(5)), expected.encode(random_frames(5)))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_taehv_computes_in_the_dtype_asked_for(weights, tmp_path, stored):
    path = saved({name: tensor.to(stored) for name, tensor in weights.items()}, tmp_path)
    assert load_vae(path).dtype == torch.float32
    assert load_vae(path, dtype=torch.float16).dtype == torch.float16
    assert load_vae(path).kind == "taew2_1", "the dtype does not show the kind"


def test_published_sizes_are_read_off_the_shapes():
    shapes = tae_shapes(**PUBLISHED)
    info = {name: TensorInfo(shape, torch.float16) for name, shape in shapes.items()}
    file, net = find_taehv(WeightFile(Path("tae"), "", info, info.__getitem__, {n: n for n in info}), "taew2_1")
    assert (net.latent_channels, net.widths) == (16, PUBLISHED["decoder"])
    assert len(file) == 128
    assert sum(t.numel() for t in net.state_dict().values()) == 11_315_539


@pytest.mark.parametrize("layer, rows", [(7, 2 * DECODER[0]), (13, 3 * DECODER[1]), (19, 2 * DECODER[2] + 1)])
def test_growing_layers_use_their_last_rows(weights, tmp_path, layer, rows):
    """Where a file has more rows than are needed."""
    name = f"decoder.{layer}.conv.weight"
    wanted = weights[name]
    more = torch.cat([torch.randn(rows - len(wanted), *wanted.shape[1:]), wanted])
    codec = load_vae(saved({**weights, name: more}, tmp_path))
    assert torch.equal(codec.decode(random_latents(2))[0], codec_of(weights).decode(random_latents(2))[0])


# --- whose latents


@pytest.mark.parametrize(
    "name, kind",
    [
        ("lighttaew2_1.safetensors", "lighttaew2_1"),
        ("taew2_1.pth", "taew2_1"),
        ("TAEW2_1_fp16.safetensors", "taew2_1"),
        ("Wan2.1-LightTAEW2.1-bf16.safetensors", "lighttaew2_1"),
        ("light_taew2_1.pth", "lighttaew2_1"),
    ],
)
def test_file_name_states_the_kind(name, kind):
    assert kind_of(Path(name)) == kind
    assert kind_of(Path("lighttaew2_1") / name) == kind, "a folder's name says nothing"
    assert kind_of(Path(name), kind) == kind


@pytest.mark.parametrize("name", ["taehv.pth", "tae.safetensors", "taew2_2.pth", "taew2_1_lighttaew2_1.pth"])
def test_unstated_kind_is_refused(name):
    with pytest.raises(BadInput, match=r"set tae_kind .* to taew2_1 or lighttaew2_1"):
        kind_of(Path(name))
    assert kind_of(Path(name), "lighttaew2_1") == "lighttaew2_1"


def test_known_digest_outweighs_any_name(tmp_path, monkeypatch):
    """Catches a published file that was renamed to what ComfyUI's previews look for."""
    path = tmp_path / "taew2_1.pth"
    path.write_bytes(b"published")
    known = (len(b"published"), hashlib.sha256(b"published").hexdigest())
    monkeypatch.setitem(PUBLISHED_TAES, "lighttaew2_1", known)
    assert kind_of(path) == kind_of(path, "lighttaew2_1") == "lighttaew2_1"
    with pytest.raises(BadInput, match="is lighttaew2_1 by its digest"):
        kind_of(path, "taew2_1")
    path.write_bytes(b"same size")
    assert kind_of(path) == "taew2_1", "length alone is no proof"


def test_taehv_loads_as_the_stated_kind(weights, tmp_path):
    """Or as the kind that its name states."""
    latents = random_latents(2)
    unnamed = saved(weights, tmp_path, "tae.safetensors")
    light = saved(weights, tmp_path, "lighttaew2_1.safetensors")
    expected = codec_of(weights, "lighttaew2_1").decode(latents)[0]
    assert torch.equal(load_vae(unnamed, tae_kind="lighttaew2_1").decode(latents)[0], expected)
    assert torch.equal(load_vae(light).decode(latents)[0], expected)


@pytest.mark.parametrize("attempt", [load_vae, open_vae])
def test_taehv_of_unknown_kind_is_refused(weights, tmp_path, attempt):
    path = saved(weights, tmp_path, "tae.safetensors")
    with pytest.raises(BadInput, match=r"which TAEHV tae\.safetensors is"):
        attempt(path)


def test_stated_kind_that_contradicts_the_name_is_refused(weights, tmp_path):
    path = saved(weights, tmp_path, "lighttaew2_1.safetensors")
    with pytest.raises(BadInput, match="by its name, not taew2_1"):
        open_vae(path, tae_kind="taew2_1")


def test_only_wans_channels_can_be_scaled(tmp_path):
    shapes = tae_shapes(latents=4)
    assert load_vae(saved(random_tae(shapes), tmp_path)).latent_channels == 4
    with pytest.raises(BadInput, match="with 4 latent channels, not 16"):
        codec_of(random_tae(shapes), "lighttaew2_1")
    with pytest.raises(BadInput, match="with 4 latent channels, not 16"):
        open_vae(saved(random_tae(shapes), tmp_path, "lighttaew2_1.safetensors"))


# --- either autoencoder


def test_tensors_show_which_autoencoder_a_file_is(weights, tmp_path, original_file):
    header = open_vae(saved(weights, tmp_path))
    assert (header.tae_kind, header.decoder_base, header.encodes) == ("taew2_1", None, True)
    assert (header.latent_channels, header.temporal_stride, header.spatial_stride) == (16, 4, 8)
    wan = open_vae(original_file)
    assert (wan.tae_kind, wan.decoder_base, wan.encodes) == (None, 4, True)
    assert (wan.latent_channels, wan.temporal_stride, wan.spatial_stride) == (16, 4, 8)
    assert isinstance(load_vae(saved(weights, tmp_path)), TaehvCodec)
    assert isinstance(load_vae(original_file), WanCodec)


# --- refusals


def reshaped(name, *shape):
    return lambda weights: {**weights, name: torch.zeros(shape)}


def without(*names):
    return lambda weights: {name: t for name, t in weights.items() if name not in names}


SPOILED = {
    "is for Wan 2.2 5B, with 48 latent channels": reshaped("decoder.1.weight", 14, 48, 3, 3),
    "has another shape for decoder.22.weight": reshaped("decoder.22.weight", 12, 6, 3, 3),
    "lacks decoder.1.weight": without("decoder.1.weight"),
    "lacks decoder.16.conv.2.bias;": without("decoder.16.conv.2.bias"),
    "lacks decoder.13.conv.weight": without("decoder.13.conv.weight"),
    "lacks encoder.3.weight": without("encoder.3.weight"),
    "has the unknown decoder.3.skip.weight": reshaped("decoder.3.skip.weight", 14, 14, 1, 1),
    "has another shape for decoder.4.conv.0.weight": reshaped("decoder.4.conv.0.weight", 14, 14, 3, 3),
    "has another shape for decoder.13.conv.weight": reshaped("decoder.13.conv.weight", 12, 12, 1, 1),
    "decoder.7.conv.weight has the shape \\(14,\\)": reshaped("decoder.7.conv.weight", 14),
    "another quantisation, in decoder.22.bias": lambda w: {
        **w,
        "decoder.22.bias": torch.zeros(3, dtype=torch.int8),
    },
    "decoder.22.bias in .* holds NaN or infinity": lambda w: {**w, "decoder.22.bias": torch.full((3,), torch.nan)},
}


@pytest.mark.parametrize("words", SPOILED)
def test_incomplete_or_foreign_taehv_is_refused(weights, tmp_path, words):
    path = saved(SPOILED[words](weights), tmp_path)
    with pytest.raises(BadInput, match=words):
        load_vae(path)
    if "NaN" not in words:
        with pytest.raises(BadInput, match=words):
            open_vae(path)


# --- layouts


def original(vae):
    return wan_vae_to_original(vae.state_dict())


LAYOUTS = {
    "Wan2.1_VAE.pth": lambda vae, path: torch.save(original(vae), path),
    "wrapped.safetensors": lambda vae, path: save_file(
        {f"model.{name}": t for name, t in original(vae).items()}, path
    ),
    "vae": lambda vae, path: vae.save_pretrained(path),  # a repository of diffusers
    "diffusion_pytorch_model.safetensors": lambda vae, path: save_file(vae.state_dict(), path),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_the_vae_hold_the_same_codec(vae, tmp_path, name):
    LAYOUTS[name](vae, tmp_path / name)
    codec = load_vae(tmp_path if name == "vae" else tmp_path / name)
    latents = random_latents(3)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents))
    assert (codec.latent_channels, codec.temporal_stride, codec.spatial_stride) == (16, 4, 8)


# Read off the original release; shapes for a base width of 4.
ORIGINAL_NAMES = {
    "conv1.weight": (32, 32, 1, 1, 1),
    "encoder.conv1.weight": (4, 3, 3, 3, 3),
    "encoder.downsamples.0.residual.0.gamma": (4, 1, 1, 1),
    "encoder.downsamples.2.resample.1.weight": (4, 4, 3, 3),
    "encoder.downsamples.3.shortcut.weight": (8, 4, 1, 1, 1),
    "encoder.downsamples.5.time_conv.weight": (8, 8, 3, 1, 1),
    "encoder.middle.1.norm.gamma": (16, 1, 1),
    "encoder.middle.1.to_qkv.weight": (48, 16, 1, 1),
    "encoder.head.2.weight": (32, 16, 3, 3, 3),
    "decoder.conv1.weight": (16, 16, 3, 3, 3),
    "decoder.middle.2.residual.6.weight": (16, 16, 3, 3, 3),
    "decoder.upsamples.3.time_conv.weight": (32, 16, 3, 1, 1),
    "decoder.upsamples.4.shortcut.weight": (16, 8, 1, 1, 1),
    "decoder.upsamples.11.resample.1.bias": (4,),
    "decoder.upsamples.14.residual.6.weight": (4, 4, 3, 3, 3),
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


def test_original_names_are_those_of_the_release(vae):
    """Catches: a map that is wrong in the same way in both directions, which passes every round trip."""
    ours = vae.state_dict()
    theirs = original(vae)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    assert {name: shapes.get(name) for name in ORIGINAL_NAMES} == ORIGINAL_NAMES
    assert all(theirs[old].equal(ours[new]) for old, new in PLACES.items())
    assert len(theirs) == 194


def test_shapes_give_widths_depths_and_strides(tmp_path):
    vae = make_vae(base_dim=8, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True])
    save_file(original(vae), tmp_path / "small.safetensors")
    codec = load_vae(tmp_path / "small.safetensors")
    latents = random_latents(3)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents))
    assert (codec.temporal_stride, codec.spatial_stride) == (2, 4)


LIGHT_BYTES = 32_160_476
"""Of the published LightVAE: a quarter of the widths, in float32."""
LIGHT_HEADER = 20_464
"""About so much is the header of 194 tensors."""


def test_lightvae_of_published_size_loads(tmp_path):
    vae = random_vae({"base_dim": LIGHT_BASE}, torch.float32)
    assert sum(p.nbytes for p in vae.parameters()) == LIGHT_BYTES - LIGHT_HEADER
    path = tmp_path / "lightvaew2_1.safetensors"
    save_file(original(vae), path)
    assert abs(path.stat().st_size - LIGHT_BYTES) < 100
    header = open_vae(path)
    assert (header.latent_channels, header.decoder_base, header.tae_kind) == (16, LIGHT_BASE, None)
    latents = random_latents(1)
    frame, _ = load_vae(path).decode(latents)
    assert torch.equal(frame, decode_whole(vae, latents))
    assert frame.std() > 0.01


# --- refusals


LOST = ("decoder.upsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.bias")
NOT_WHOLE = {
    "48 latent channels, not 16 .Wan 2.2 5B has 48.": lambda w: {**w, "conv2.weight": torch.zeros(48, 48, 1, 1, 1)},
    "holds no video VAE": lambda w: {"blocks.0.self_attn.q.weight": torch.zeros(4, 4)},
    "is not a whole Wan 2.1 VAE, as it lacks post_quant_conv.weight": lambda w: {
        "encoder.conv_in.weight": torch.zeros(8, 3, 3, 3),
        "encoder.down_blocks.0.resnets.0.conv1.weight": torch.zeros(8, 8, 3, 3),
    },
    "lacks decoder.up_blocks.0.resnets.0.conv1.weight, decoder.up_blocks.0.resnets.0.conv1.bias;": without(*LOST),
    "lacks encoder.down_blocks.4.conv1.weight": without("encoder.downsamples.4.residual.2.weight"),
    "encoder in spoiled.safetensors lacks blocks": lambda w: {
        n: t for n, t in w.items() if not n.startswith(("encoder.downsamples.9.", "encoder.downsamples.10."))
    },
    "has the unknown discriminator.weight": lambda w: {**w, "discriminator.weight": torch.zeros(1)},
    "has another shape for decoder.conv_out.bias": lambda w: {**w, "decoder.head.2.bias": torch.zeros(12)},
    "has 4 latent channels, not 16": lambda w: original(make_vae(z_dim=4)),
}


@pytest.mark.parametrize("words", NOT_WHOLE)
def test_incomplete_or_foreign_vae_is_refused(vae, tmp_path, words):
    path = tmp_path / "spoiled.safetensors"
    save_file(NOT_WHOLE[words](original(vae)), path)
    with pytest.raises(BadInput, match=words):
        load_vae(path)
