"""What a request comes to before anything is loaded: the size in which pixels are read, and what is encoded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sdvg_core.engine.plan import Lead
from sdvg_core.engine.types import hash_tensor
from sdvg_core.errors import BadInput
from sdvg_core.loading.headers import check_models
from sdvg_core.settings.load import LoadOptions, ModelOptions
from sdvg_core.settings.request import VideoRequest
from sdvg_core.settings.route import First, Route
from sdvg_core.videos.resolve import resolve_request
from sdvg_core.videos.start import FrameStart, LatentStart, LockedStart, PictureStart, Start
from sdvg_core.weights.model_files import ModelFiles

LOAD = LoadOptions(drafter=ModelOptions(preset="custom"), target=ModelOptions(preset="custom"))
REQUEST = VideoRequest(blocks=2, width=32, height=32, route=Route(First(1)))


def test_start_is_read_in_the_videos_size(files: ModelFiles) -> None:
    """Of a video that is no square. Catches: width and height, one for the other."""
    sizes: list[tuple[int, int]] = []

    def read(width: int, height: int) -> Start:
        sizes.append((width, height))
        return PictureStart(torch.zeros(1, 1, 3, height, width))

    request = VideoRequest(blocks=2, width=48, height=32, route=Route(First(1)))
    resolved = resolve_request(request, check_models(files, LOAD), start=read)
    assert (resolved.width, resolved.height) == (48, 32)
    assert sizes == [(48, 32)]


def test_vae_of_other_channels_is_refused(files: ModelFiles) -> None:
    """Of a TAEHV for a family that we do not know, say. Catches: torch's error after the first block was made."""
    headers = check_models(files, LOAD)
    headers = replace(headers, vae=replace(headers.vae, latent_channels=12))
    with pytest.raises(BadInput, match="the VAE has 12 latent channels and the drafter 16;"):
        resolve_request(REQUEST, headers, start=PictureStart(torch.zeros(1, 1, 3, 32, 32)))


def clip(frames: int) -> torch.Tensor:
    return torch.zeros(1, 16, frames, 4, 4)


AFTER_PICTURE = Lead(frames=6, start_image_frames=3)
STARTS: dict[str, tuple[Start, bool, int]] = {
    "picture": (PictureStart(torch.zeros(1, 1, 3, 32, 32)), True, 8),
    "picture in latents": (LatentStart(clip(1), Lead()), True, 8),
    "frame of a shot": (FrameStart(), True, 9),
    "clip shorter than a block": (LatentStart(clip(2), Lead()), True, 4),
    "clip of a block": (LatentStart(clip(3), Lead()), False, 0),
    "clip of two blocks": (LatentStart(clip(6), Lead()), False, 0),
    "clip after a picture": (LatentStart(clip(6), AFTER_PICTURE), False, 8),
    "locked blocks": (LockedStart(clip(3), Lead(), given_frames=0, blocks=1), False, 0),
    "locked after a picture": (LockedStart(clip(6), AFTER_PICTURE, given_frames=3, blocks=1), False, 8),
    "locked after a clip": (LockedStart(clip(6), Lead(frames=6), 3, 1, "", LatentStart(clip(3), Lead())), False, 0),
    "locked after a short clip": (
        LockedStart(clip(6), Lead(frames=6), 3, 1, hash_tensor(clip(2)), LatentStart(clip(2), Lead())),
        False,
        4,
    ),
}
"""By name: a start, whether it is encoded, and the pixel frames that models see before the video's first one."""


@pytest.mark.parametrize("name", STARTS)
def test_start_is_encoded_and_padded_as_needed(files: ModelFiles, name: str) -> None:
    """Catches: a VAE without an encoder, refused for a clip that needs none; a control that begins elsewhere."""
    start, encoded, padding = STARTS[name]
    plan = resolve_request(REQUEST, check_models(files, LOAD), start=start).plan
    assert bool(start.encoded(plan.lead)) == encoded
    assert start.padding(plan, 4) == padding
