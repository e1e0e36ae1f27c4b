"""Files of the VAE: every published layout holds the same codec; what is not the whole VAE is refused by name."""

from __future__ import annotations

import pytest
import torch
from random_set import wan_vae_to_original
from safetensors.torch import save_file
from vae_parts import decode_whole, make_vae, random_latents, random_vae

from sdvg_core.decoders.open import LIGHT_BASE, load_vae, open_vae
from sdvg_core.errors import BadInput

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
def test_every_published_layout_holds_the_same_codec(vae, tmp_path, name):
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


def test_the_original_names_are_those_of_the_release(vae):
    """A map that is wrong the same way in both directions would pass every round trip; names do not."""
    ours, theirs = vae.state_dict(), original(vae)
    shapes = {name: tuple(t.shape) for name, t in theirs.items()}
    assert {name: shapes.get(name) for name in ORIGINAL_NAMES} == ORIGINAL_NAMES
    assert all(theirs[old].equal(ours[new]) for old, new in PLACES.items())
    assert len(theirs) == 194


def test_other_widths_depths_and_strides_come_from_the_shapes(tmp_path):
    vae = make_vae(base_dim=8, dim_mult=[1, 2, 2], num_res_blocks=1, temperal_downsample=[False, True])
    save_file(original(vae), tmp_path / "small.safetensors")
    codec = load_vae(tmp_path / "small.safetensors")
    latents = random_latents(3)
    assert torch.equal(codec.decode(latents)[0], decode_whole(vae, latents))
    assert (codec.temporal_stride, codec.spatial_stride) == (2, 4)


LIGHT_BYTES, LIGHT_HEADER = 32_160_476, 20_464
"""Of the published LightVAE, in float32; 194 tensors need a header of about that length."""


def test_lightvae_of_a_quarter_of_the_widths_has_its_published_size_and_loads(tmp_path):
    vae, latents = random_vae({"base_dim": LIGHT_BASE}, torch.float32), random_latents(1)
    assert sum(p.nbytes for p in vae.parameters()) == LIGHT_BYTES - LIGHT_HEADER
    path = tmp_path / "lightvaew2_1.safetensors"
    save_file(original(vae), path)
    assert abs(path.stat().st_size - LIGHT_BYTES) < 100
    header = open_vae(path)
    assert (header.latent_channels, header.decoder_base, header.is_tae) == (16, LIGHT_BASE, False)
    frame, _ = load_vae(path).decode(latents)
    assert torch.equal(frame, decode_whole(vae, latents))
    assert frame.std() > 0.01


# --- refusals


def without(*names):
    return lambda weights: {name: t for name, t in weights.items() if name not in names}


LOST = ("decoder.upsamples.0.residual.2.weight", "decoder.upsamples.0.residual.2.bias")
SPOILED = {
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


@pytest.mark.parametrize("words", SPOILED)
def test_a_file_that_is_not_the_whole_vae_is_refused_by_name(vae, tmp_path, words):
    path = tmp_path / "spoiled.safetensors"
    save_file(SPOILED[words](original(vae)), path)
    with pytest.raises(BadInput, match=words):
        load_vae(path)
