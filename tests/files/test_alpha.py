"""The alpha of clips and pictures, which a control mask can be made of."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sdvg_core.files.footage import read_alpha, read_footage

SIDE = 64
LEVELS = (0, 64, 200, 255)
FRAMES = 6


def picture(number: int = 0, levels: tuple[int, ...] = LEVELS) -> np.ndarray:
    """Return RGBA of 64 x 64 with four columns of alpha; frame `number` moves them on by so many columns."""
    pixels = np.full((SIDE, SIDE, 4), (200, 60, 40, 255), np.uint8)
    pixels[:, :, 3] = np.roll(np.repeat(levels, SIDE // 4), number * SIDE // 4)
    return pixels


def clip(path: Path, codec: str, kind: str, levels: tuple[int, ...] = LEVELS) -> Path:
    """Write a clip with alpha, 16 frames a second."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=16)
        stream.width = SIDE
        stream.height = SIDE
        stream.pix_fmt = kind
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(number, levels), format="rgba").reformat(format=kind)
            frame.pts = number
            frame.time_base = Fraction(1, 16)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


CLIPS = {
    "prores.mov": ("prores_ks", "yuva444p10le"),
    "animation.mov": ("qtrle", "argb"),
    "png.mov": ("png", "rgba"),
    "vp9.webm": ("libvpx-vp9", "yuva420p"),
    "ffv1.mkv": ("ffv1", "yuva444p10le"),
}


@pytest.mark.parametrize("name", CLIPS)
def test_alpha_of_clips_is_read_by_frame(name, tmp_path):
    """Catches: alpha of limited range; of another frame; WebM's left out, as FFmpeg's own decoder does."""
    path = clip(tmp_path / name, *CLIPS[name])
    alpha = read_alpha(path, SIDE, SIDE)
    assert alpha is not None
    assert alpha.frames == read_footage(path, SIDE, SIDE).frames == FRAMES
    for number in range(FRAMES):
        middles = alpha.pixels[number, 0, 32, 8::16]
        assert (middles.int() - torch.tensor(np.roll(LEVELS, number))).abs().max() <= 2
    assert path.name in alpha.note


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif", "folder", "moving.webp"])
def test_alpha_of_pictures_is_read(name, tmp_path):
    """Catches: alpha of clips alone; one picture's alpha for all of an animation."""
    path = tmp_path / name
    pictures = [Image.fromarray(picture(number)) for number in range(2)]
    if name == "folder":
        path.mkdir()
        pictures[0].save(path / "1.png")
        pictures[1].save(path / "2.png")
    elif name == "moving.webp":
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=62, lossless=True)
    else:
        pictures[0].save(path, lossless=True)
    alpha = read_alpha(path, SIDE, SIDE)
    assert alpha is not None
    for number in range(alpha.frames):
        assert alpha.pixels[number, 0, 32, 8::16].tolist() == np.roll(LEVELS, number).tolist()
    assert alpha.frames == (2 if name in ("folder", "moving.webp") else 1)


def test_opaque_clips_have_no_alpha(tmp_path):
    """Catches: a mask that keeps all, from a clip whose alpha says nothing."""
    opaque = (255, 255, 255, 255)
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "a.png")
    Image.fromarray(picture(0, opaque)).save(tmp_path / "b.png")
    paths = [clip(tmp_path / "c.mov", "qtrle", "argb", opaque), clip(tmp_path / "d.mp4", "libx264", "yuv420p")]
    for path in (*paths, tmp_path / "a.png", tmp_path / "b.png"):
        assert read_alpha(path, SIDE, SIDE) is None


def test_alpha_is_cropped_and_turned_as_its_pixels(tmp_path):
    """Catches: a mask that lies beside what it masks: a wide picture that a camera filed on its side."""
    pixels = np.zeros((SIDE, 2 * SIDE, 4), np.uint8)
    pixels[:24, 32:96] = 255
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=turned)
    colour = read_footage(tmp_path / "a.png", SIDE, SIDE).pixels[0, 0]
    alpha = read_alpha(tmp_path / "a.png", SIDE, SIDE)
    assert alpha is not None
    assert torch.equal(alpha.pixels[0, 0], colour)
    assert (colour[:, 40:] == 255).all(), "what was at the top is at the right"
    assert (colour[:, :40] == 0).all()
