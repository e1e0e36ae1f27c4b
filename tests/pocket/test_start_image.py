"""A video from a picture, or from a clip of any length, is as good as one from nothing; by the oracle."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

from research.world import held_out_prompts, render
from sdvg_core import RouterConfig, Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.pipeline.latents import save_latents
from sdvg_core.pocket.grammar import parse
from training.measure_start import decibels

WORSE = 2.5
"""Decibels by which it may be worse than a video made whole; from one latent frame alone it was 6 worse."""
(PROMPT,) = held_out_prompts(1, seed=33)
SIZE = {"width": 64, "height": 64, "router": RouterConfig(policy="always-target")}


@pytest.fixture(scope="module")
def streamer() -> Streamer:
    return Streamer(trained_set(), pocket_options())


def made(streamer: Streamer, *, blocks: int = 3, **start: object) -> Tensor:
    """The new frames `f c h w`."""
    with streamer.stream(VideoRequest(**SIZE, blocks=blocks, **start), PROMPT) as made_blocks:
        return torch.cat([block.frames for block in made_blocks]).movedim(-1, 1)


def quality(frames: Tensor, first: int = 0) -> float:
    return decibels(frames, parse(PROMPT), first).mean().item()


def test_a_video_from_a_picture_is_nearly_as_good_as_one_from_nothing(streamer, tmp_path):
    """Catches: a picture that becomes one latent frame, which no model was trained to go on from."""
    still = render(parse(PROMPT), torch.zeros(1))[0]
    Image.fromarray((still.movedim(0, -1) * 255).round().byte().numpy()).save(tmp_path / "still.png")
    whole = quality(made(streamer)[1:])
    assert quality(made(streamer, start_image=tmp_path / "still.png")) > whole - WORSE


def test_a_video_goes_on_from_a_clip_of_any_number_of_latent_frames(streamer, tmp_path):
    """Against the same moments of a clip made whole. Catches: one latent frame taken as it is."""
    whole, codec = made(streamer, blocks=4), streamer._loaded.build().codec
    for frames in (1, 2, 4, 5, 7):
        given = render(parse(PROMPT), torch.arange(first := 1 + 4 * (frames - 1)))
        save_latents(tmp_path / "clip.safetensors", codec.encode(given[None]), {})
        new = made(streamer, blocks=1, continue_from=tmp_path / "clip.safetensors")
        assert quality(new, first) > quality(whole[first : first + 12], first) - WORSE, frames
