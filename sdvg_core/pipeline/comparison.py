"""Two finished videos, side by side in one mp4 to look at."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..files.outputs import LATENTS, REPORT, staged_outputs
from ..files.video import Mp4Writer
from ..report.picture import Side, side_by_side
from ..report.run_report import read_report
from .latents import load_latents
from .loading import load_decoder
from .options import LoadOptions

COMPARISON = "comparison.mp4"


@torch.inference_mode()
def compare_videos(left: Path, right: Path, titles: tuple[str, str], vae: Path, load: LoadOptions) -> Path:
    """Write `comparison.mp4` into the folder `left`, from the latents and reports of two folders; return its path.

    The pixels are decoded again: those in an mp4 are compressed. `vae`: what both videos were decoded with.
    Raises `BadInput` if a file is missing or damaged.
    """
    folders = zip(titles, (left, right), strict=True)
    sides = [Side(title, _decode(folder, vae, load), read_report(folder / REPORT)) for title, folder in folders]
    with staged_outputs(left) as staging, Mp4Writer(staging.path(COMPARISON), sides[0].report.fps) as video:
        for frame in side_by_side(*sides):
            video.add(frame)
    return left / COMPARISON


def _decode(folder: Path, vae: Path, load: LoadOptions) -> Tensor:
    """Return the pixel frames of a video, `f c h w`."""
    frames, _ = load_decoder(vae, load).decode(load_latents(folder / LATENTS).latents)
    return frames[0]
