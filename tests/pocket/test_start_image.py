"""A video from a picture, or from a clip of any length, is as good as one from nothing; by the oracle."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

from research.world import held_out_prompts, render
from sdvg_core import RouterConfig, Streamer, VideoRequest, pocket_options, trained_set
from sdvg_core.checkpoints.latents import save_latents
from sdvg_core.cli import main
from sdvg_core.files.footage import count_frames, read_footage
from sdvg_core.pocket.grammar import parse
from training.measure_start import decibels

pytestmark = pytest.mark.heavy

WORSE = 2.5
"""Decibels by which it may be worse than a video made whole; from one latent frame alone it was 6 worse."""
(PROMPT,) = held_out_prompts(1, seed=33)
FRAIL = "a big orange box drifts left and up from the top over sea"
"""Two latent frames alone cost this one 10 dB."""
SIZE = {"width": 64, "height": 64, "router": RouterConfig(policy="always-target")}


@pytest.fixture(scope="module")
def streamer() -> Streamer:
    return Streamer(trained_set(), pocket_options())


def made(streamer: Streamer, *, blocks: int = 3, prompt: str = PROMPT, **start: object) -> Tensor:
    """The new frames `f c h w`."""
    with streamer.stream(VideoRequest(**SIZE, blocks=blocks, **start), prompt) as made_blocks:
        return torch.cat([block.frames for block in made_blocks]).movedim(-1, 1)


def quality(frames: Tensor, first: int = 0, prompt: str = PROMPT) -> float:
    return decibels(frames, parse(prompt), first).mean().item()


def test_a_video_from_a_picture_is_nearly_as_good_as_one_from_nothing(streamer, tmp_path):
    """Catches: a picture that becomes one latent frame, which no model was trained to go on from."""
    still = render(parse(PROMPT), torch.zeros(1))[0]
    Image.fromarray((still.movedim(0, -1) * 255).round().byte().numpy()).save(tmp_path / "still.png")
    whole = quality(made(streamer)[1:])
    assert quality(made(streamer, start_image=tmp_path / "still.png")) > whole - WORSE


def test_a_video_goes_on_from_a_clip_of_any_number_of_latent_frames(streamer, tmp_path):
    """Against the same moments of a clip made whole. Catches: one latent frame, or two, taken as they are."""
    codec = streamer._loaded.build().codec
    wholes = {prompt: made(streamer, blocks=4, prompt=prompt) for prompt in (PROMPT, FRAIL)}
    for prompt, frames in [*((PROMPT, frames) for frames in (1, 2, 4)), (FRAIL, 2)]:
        given = render(parse(prompt), torch.arange(first := 1 + 4 * (frames - 1)))
        save_latents(tmp_path / "clip.safetensors", codec.encode(given[None]), {})
        new = made(streamer, blocks=1, prompt=prompt, continue_from=tmp_path / "clip.safetensors")
        whole = wholes[prompt][first : first + 12]
        assert quality(new, first, prompt) > quality(whole, first, prompt) - WORSE, (prompt, frames)


def test_two_latent_frames_are_shown_as_they_are_and_nothing_of_what_is_held_before(streamer, tmp_path):
    codec = streamer._loaded.build().codec
    latents = codec.encode(render(parse(PROMPT), torch.arange(5))[None])
    save_latents(tmp_path / "clip.safetensors", latents, {})
    words = ["generate", "--models", "pocket", "--prompt", PROMPT, "--blocks", "1", "--preset", "fast"]
    assert main([*words, "--continue-from", f"{tmp_path}/clip.safetensors", "--output", f"{tmp_path}/out"]) == 0
    assert count_frames(tmp_path / "out" / "video.mp4") == 5 + 12
    assert "first frame is held" in (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    seen, given = read_footage(tmp_path / "out" / "video.mp4", 64, 64).pixels[:5] / 255, codec.decode(latents)[0][0]
    assert (seen - given).abs().mean() < 0.03  # the mp4's own loss
