"""Small pictures of a video: which frames they show, and how many bytes they take."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from sdvg_core.errors import BadInput
from sdvg_core.files import thumbnails
from sdvg_core.files.thumbnails import read_thumbnails
from sdvg_core.files.video import write_mp4


def pictures(jpeg: bytes, count: int) -> list[np.ndarray]:
    whole = np.asarray(Image.open(io.BytesIO(jpeg)), dtype=float) / 255
    return np.split(whole, count, axis=1)


@pytest.mark.parametrize("count", [1, 5, 24, 25, 100, 333])
def test_pictures_are_spread_over_the_whole_video_and_show_the_frames_they_name(tmp_path, count):
    grey = torch.linspace(0.1, 0.9, count)
    write_mp4(tmp_path / "v.mp4", grey[:, None, None, None].expand(count, 3, 16, 16), 16)
    found = read_thumbnails(tmp_path / "v.mp4", 1_000_000)
    assert found.of == count
    assert len(found.frames) == min(count, 24)
    assert found.frames[0] == 0
    steps = np.diff(found.frames)
    assert count == 1 or (steps.min() >= 1 and steps.max() <= 2 * max(steps.min(), 1))
    assert found.frames[-1] >= 0.9 * (count - 1)
    for frame, shown in zip(found.frames, pictures(found.jpeg, len(found.frames)), strict=True):
        assert shown.mean() == pytest.approx(float(grey[frame]), abs=0.03)


def test_colours_are_those_of_the_video(tmp_path):
    """Catches a conversion by another matrix than the file's."""
    colour = torch.tensor([0.9, 0.2, 0.1])
    write_mp4(tmp_path / "v.mp4", colour[None, :, None, None].expand(2, 3, 64, 320), 16)
    found = read_thumbnails(tmp_path / "v.mp4", 1_000_000)
    assert (found.width, found.height) == (160, 32)
    for shown in pictures(found.jpeg, 2):
        assert shown.mean(axis=(0, 1)) == pytest.approx(colour.numpy(), abs=0.03)


def test_pictures_of_noise_stay_within_their_bytes(tmp_path):
    noise = torch.rand(24, 3, 96, 160, generator=torch.Generator().manual_seed(0))
    write_mp4(tmp_path / "v.mp4", noise, 16)
    for most in (90_000, 20_000):
        found = read_thumbnails(tmp_path / "v.mp4", most)
        assert len(found.jpeg) <= most
        assert len(found.frames) >= 4


def test_a_video_of_another_kind_or_without_end_is_refused(tmp_path, monkeypatch):
    write_mp4(tmp_path / "v.mp4", torch.zeros(9, 3, 16, 16), 16)
    monkeypatch.setattr(thumbnails, "MOST_FRAMES", 8)
    with pytest.raises(BadInput, match="at most 8 frames"):
        read_thumbnails(tmp_path / "v.mp4", 1000)
    monkeypatch.setattr(thumbnails, "MOST_PIXELS", 100)
    with pytest.raises(BadInput, match="16x16; give a video that sdvg wrote"):
        read_thumbnails(tmp_path / "v.mp4", 1000)
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n", encoding="utf-8")
    with pytest.raises(BadInput, match="cannot be read") as error:
        read_thumbnails(tmp_path / "list.m3u8", 1000)
    assert str(tmp_path) not in str(error.value), "a reason may stand on a page that is passed on"
