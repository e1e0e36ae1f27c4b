"""A video from a picture, or from a single latent frame, is as good as one from nothing; by the oracle."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

from research.metrics import REACH, weighted_error
from research.world import held_out_prompts, render, render_with_mask
from sdvg_core import RouterConfig, Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.pipeline.latents import save_latents
from sdvg_core.pocket.grammar import parse

LATER = 24
"""Frames by which a video that starts from a picture may be late: it first shows things that stand still."""
WORSE = 2.5
"""Decibels by which it may be worse than a video made whole; from one latent frame alone it was 6 worse."""
(PROMPT,) = held_out_prompts(1, seed=33)
SIZE = {"width": 64, "height": 64, "blocks": 3, "router": RouterConfig(policy="always-target")}


@pytest.fixture(scope="module")
def streamer() -> Streamer:
    return Streamer(trained_set(), pocket_options())


def made(streamer: Streamer, **start: object) -> Tensor:
    """The new frames `f c h w`."""
    with streamer.stream(VideoRequest(**SIZE, **start), PROMPT) as blocks:
        return torch.cat([block.frames for block in blocks]).movedim(-1, 1)


def decibels(frames: Tensor) -> float:
    """Of each frame against its best moment, from a little early to quite late."""
    count, moments = len(frames), REACH + LATER
    times = torch.arange(-REACH, count + LATER, dtype=torch.float32).clamp(min=0)
    truth, mask = render_with_mask(parse(PROMPT), times)
    errors = [weighted_error(frames, truth[i : i + count], mask[i : i + count]) for i in range(moments)]
    return float(-10 * torch.stack(errors).min(dim=0).values.log10().mean())


def test_a_video_from_a_picture_is_nearly_as_good_as_one_from_nothing(streamer, tmp_path):
    """Catches: a picture that becomes one latent frame, which no model was trained to go on from."""
    whole = decibels(made(streamer)[1:])
    still = render(parse(PROMPT), torch.zeros(1))[0]
    Image.fromarray((still.movedim(0, -1) * 255).round().byte().numpy()).save(tmp_path / "still.png")
    assert decibels(made(streamer, start_image=tmp_path / "still.png")) > whole - WORSE
    save_latents(tmp_path / "clip.safetensors", streamer._loaded.build().codec.encode(still[None, None]), {})
    assert decibels(made(streamer, continue_from=tmp_path / "clip.safetensors")) > whole - WORSE
