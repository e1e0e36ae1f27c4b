"""VAEs of random weights, clips for them, and what diffusers makes of a clip."""

from __future__ import annotations

import copy

import torch
from diffusers import AutoencoderKLWan

from sdvg_core.decoders.wan_vae import WAN_MEAN, WAN_STD, WanCodec

MEAN = torch.tensor(WAN_MEAN).view(1, -1, 1, 1, 1)
STD = torch.tensor(WAN_STD).view(1, -1, 1, 1, 1)

# Two resolutions, one step in time: every kind of layer, and few of them, for a compiler is slow.
SMALL = {
    "base_dim": 4,
    "dim_mult": [1, 1],
    "num_res_blocks": 1,
    "temperal_downsample": [True],
    "scale_factor_temporal": 2,
    "scale_factor_spatial": 2,
}


def make_vae(**sizes):
    """Return a VAE with random weights, none of them zero, so that every layer and every cache entry matters."""
    vae = AutoencoderKLWan(**{"base_dim": 4, **sizes}).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    for parameter in vae.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return vae


def random_vae(sizes: dict, dtype=torch.float64):
    """Return a VAE with random weights as large as trained ones, so that pixels are not all black or white."""
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
        temporal_stride=vae.config.scale_factor_temporal,
        spatial_stride=vae.config.scale_factor_spatial,
        **options,
    )


def random_latents(frames, seed=1):
    # Not smaller: below about 16 pixels a 1x1x1 convolution rounds differently with the number of frames, and
    # diffusers gives it all frames at once.
    return torch.randn(1, 16, frames, 4, 6, generator=torch.Generator().manual_seed(seed))


def random_frames(count):
    return torch.rand(1, count, 3, 32, 48, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def decode_whole(vae, latents):
    """Return what diffusers makes of the whole clip, as frames in [0, 1]."""
    video = vae.decode(latents * STD + MEAN).sample
    return (video.movedim(2, 1) + 1) / 2


def decode_pieces(codec: WanCodec, latents, cut):
    """Return the frames of a clip decoded in pieces of these lengths, and the state after them."""
    state = None
    pieces = []
    for piece in latents.split(cut, dim=2):
        frames, state = codec.decode(piece, state)
        pieces.append(frames)
    return torch.cat(pieces, dim=1), state


def tensors(state):
    return [entry for entry in state if torch.is_tensor(entry)]


def assert_still_a_value(codec, clip, expected):
    """Decode in pieces: frames as expected, to rounding, and a state that is only read, and pins nothing."""
    frames, state = decode_pieces(codec, clip, [1, 1, clip.shape[2] - 2])
    assert (frames - expected).abs().max() < 5e-7
    assert isinstance(state, tuple)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in tensors(state))
    before = [t.clone() for t in tensors(state)]
    first, _ = codec.decode(random_latents(2, seed=3), state)
    second, _ = codec.decode(random_latents(2, seed=3), state)
    assert torch.equal(first, second)
    assert all(torch.equal(now, then) for now, then in zip(tensors(state), before, strict=True))
