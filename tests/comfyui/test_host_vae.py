"""Block-wise decoding over ComfyUI's VAE, against ComfyUI decoding the same latents in one go."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import comfy.sd
import pytest
import torch
from comfy.latent_formats import Wan21
from comfy.ldm.wan.vae import WanVAE
from host_tiny import generator_of, load_vae
from sdvg_pack.nodes.host.vae import ComfyCodec, check_vae
from sdvg_pack.sdvg_core.errors import BadInput
from torch import Tensor

pytestmark = pytest.mark.comfyui

SIZE = (3, 5)
HEIGHT, WIDTH = 8 * SIZE[0], 8 * SIZE[1]


@pytest.fixture(scope="module")
def vae() -> comfy.sd.VAE:
    return load_vae(dim=8)  # of narrower layers torch computes one frame in another way than several


def draw(seed: int, frames: int) -> Tensor:
    return torch.randn(1, 16, frames, *SIZE, generator=generator_of(seed))


def whole(vae: comfy.sd.VAE, latents: Tensor) -> Tensor:
    """What VAE Decode shows for the LATENT of these latents, as `b f c h w`."""
    return vae.decode(Wan21().process_out(latents)).movedim(-1, 2).reshape(1, -1, 3, HEIGHT, WIDTH)


def in_blocks(codec: ComfyCodec, blocks: Iterable[Tensor]) -> Tensor:
    state, shown = None, []
    for block in blocks:
        frames, state = codec.decode(block, state)
        shown.append(frames)
    return torch.cat(shown, dim=1)


@pytest.mark.parametrize("pattern", ["".join(p) for p in product("ar", repeat=3)])
def test_emitted_frames_are_comfyuis_decode_of_the_emitted_latents(pattern: str, vae: comfy.sd.VAE) -> None:
    """Catches a state that a rejected draft left its mark on, or that a second decode from it changes."""
    codec, state, kept, shown = ComfyCodec(vae), None, [], []
    for i, fate in enumerate(pattern):
        before = state
        block = draw(i, 3)
        frames, state = codec.decode(block, before)
        if fate == "r":
            block = draw(100 + i, 3)
            frames, state = codec.decode(block, before)
        kept.append(block)
        shown.append(frames)
    assert torch.equal(torch.cat(shown, dim=1), whole(vae, torch.cat(kept, dim=2)))


CUTS = [(1, 3, 3, 3), (1, 2, 1, 3, 1, 1, 2), (4, 1, 4)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_blocks_of_any_lengths_are_decoded_as_in_one_go(cut: tuple[int, ...], vae: comfy.sd.VAE) -> None:
    """A start image is a block of one. Catches that ComfyUI's layers forget the frame before a block of one."""
    latents = draw(1, sum(cut))
    assert torch.equal(in_blocks(ComfyCodec(vae), latents.split(cut, dim=2)), whole(vae, latents))


def test_the_vaes_dtype_is_honoured() -> None:
    vae = load_vae()
    vae.first_stage_model.to(torch.bfloat16)
    vae.vae_dtype = torch.bfloat16
    latents = draw(1, 6)
    frames = in_blocks(ComfyCodec(vae), latents.split(3, dim=2))
    assert torch.equal(frames, whole(vae, latents))
    assert not torch.equal(frames, whole(load_vae(), latents))
    assert torch.equal(ComfyCodec(vae).encode(frames[:, :5]), encoded(vae, frames[:, :5]))


def encoded(vae: comfy.sd.VAE, frames: Tensor) -> Tensor:
    """The normalised latents of what VAE Encode gives for an IMAGE."""
    return Wan21().process_in(vae.encode(frames[0].movedim(1, -1)))


@pytest.mark.parametrize("count", [1, 5, 9, 13])
def test_a_clip_is_encoded_as_comfyui_encodes_it(count: int, vae: comfy.sd.VAE) -> None:
    frames = torch.rand(1, count, 3, HEIGHT, WIDTH, generator=generator_of(4))
    latents = ComfyCodec(vae).encode(frames)
    assert latents.shape == (1, 16, 1 + count // 4, *SIZE)
    assert torch.equal(latents, encoded(vae, frames))


def stand_in(model: Any, channels: int) -> comfy.sd.VAE:
    """A VAE object around another first stage; building the real ones would take gigabytes."""
    vae = load_vae()
    vae.first_stage_model, vae.latent_channels = model, channels
    return vae


def foreign(name: str) -> tuple[Any, int]:
    import comfy.ldm.wan.vae2_2
    import comfy.taesd.taehv
    from comfy.ldm.models.autoencoder import AutoencoderKL

    layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
    with torch.device("meta"):
        return {
            "Wan 2.2's": lambda: (comfy.ldm.wan.vae2_2.WanVAE(dim=16, z_dim=48, **layout), 48),
            "TAEHV of another model": lambda: (comfy.taesd.taehv.TAEHV(latent_channels=48, latent_format=None), 48),
            "another family": lambda: (AutoencoderKL.__new__(AutoencoderKL), 4),
            "a variant": lambda: (WanVAE(dim=8, z_dim=16, image_channels=4, conv_out_channels=4, **layout), 16),
        }[name]()


@pytest.mark.parametrize("name", ["Wan 2.2's", "TAEHV of another model", "another family", "a variant"])
def test_another_vae_is_refused_by_what_it_is(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        check_vae(stand_in(*foreign(name)), "taew2_1")
