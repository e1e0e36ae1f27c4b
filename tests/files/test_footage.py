"""Clips that are read: by their time stamps, cropped and never stretched, and nothing but video files."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from sdvg_core.errors import BadInput
from sdvg_core.files import clip, footage
from sdvg_core.files.footage import Footage, count_frames, read_footage
from sdvg_core.files.video import write_mp4


def film(path: Path, times: list[float], *, size: tuple[int, int] = (32, 32)) -> Path:
    """Write frames that are shown from these seconds on; frame n is grey of 10 n."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=1000)
        stream.width, stream.height, stream.pix_fmt = *size, "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, at in enumerate(times):
            grey = np.full((size[1], size[0], 3), 10 * number % 250, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts, frame.time_base = round(at * 1000), Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def numbers(read: Footage) -> list[int]:
    return (read.pixels[:, 0, 0, 0].float() / 10).round().int().tolist()


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ([n / 16 for n in range(6)], [0, 1, 2, 3, 4, 5]),
        ([n / 8 for n in range(4)], [0, 0, 1, 1, 2, 2, 3]),
        ([n / 32 for n in range(8)], [0, 2, 4, 6]),
        ([3 + n / 24 for n in range(6)], [0, 1, 3, 4]),
        ([0, 0.01, 0.02, 0.5, 0.52, 0.6], [0, 2, 2, 2, 2, 2, 2, 2, 3, 4]),
        ([0], [0]),
    ],
    ids=["16", "8", "32", "24, not from 0", "variable", "one"],
)
def test_a_frame_is_the_newest_at_its_moment(times, shown, tmp_path):
    """By time stamps. Catches: frames taken by their index, whatever the rate; the last one lost."""
    path = film(tmp_path / "clip.mkv", times)
    assert numbers(read_footage(path, 32, 32))[: len(shown)] == shown
    assert read_footage(path, 32, 32).frames in (len(shown), len(shown) + 1)
    # How long the last frame is shown, a file does not say.
    assert count_frames(path) == read_footage(path, 32, 32).frames


def test_a_clip_of_another_shape_is_cropped_in_the_middle_and_never_stretched(tmp_path):
    """A round thing in a wide clip stays round."""
    rows, columns = np.mgrid[:64, :160]
    disc = ((rows - 31.5) ** 2 + (columns - 79.5) ** 2 < 20**2).astype(np.float32)
    write_mp4(tmp_path / "wide.mp4", torch.from_numpy(disc).expand(2, 3, 64, 160), fps=16)
    read = read_footage(tmp_path / "wide.mp4", 64, 64)
    assert read.pixels.shape == (2, 3, 64, 64)
    inside = read.pixels[0, 0] > 127
    assert abs(int(inside.any(0).sum()) - int(inside.any(1).sum())) <= 2
    assert "160x64, taken as 2 frames at 16 a second in 64x64" in read.note


def test_a_clip_of_a_phone_held_upright_is_read_upright(tmp_path):
    """The file lies on its side, and says so. Catches: sideways, or turned the other way."""
    path = tmp_path / "phone.mp4"
    frames = torch.zeros(2, 3, 32, 64)
    frames[:, 0, :, :32] = 1  # red on the left, which is at the top once it is turned clockwise
    write_mp4(path, frames, fps=16)
    one, none = (65536).to_bytes(4, "big"), bytes(4)
    lying = one + 3 * none + one
    header, matrix, track = path.read_bytes().rpartition(lying)
    assert matrix, "the track's matrix"
    path.write_bytes(header + none + one + none + (-65536).to_bytes(4, "big", signed=True) + none + track)
    read = read_footage(path, 32, 64).pixels[0].float()
    assert read[0, :24].mean() > 200 > 60 > read[0, 40:].mean()
    assert "32x64, taken" in read_footage(path, 32, 64).note


def test_a_clip_that_is_damaged_in_its_middle_is_refused_or_read(tmp_path):
    """Never a traceback, by whichever of both functions."""
    path = film(tmp_path / "whole.mkv", [n / 16 for n in range(20)])
    content = path.read_bytes()
    for at in range(200, len(content), 97):
        path.write_bytes(content[:at] + b"\xff\x00\x5a" * 8 + content[at + 24 :])
        for read in (count_frames, lambda path: read_footage(path, 32, 32)):
            with suppress(BadInput):
                read(path)


def test_frames_are_counted_no_further_than_a_clip_may_be_long(tmp_path, monkeypatch):
    """Catches: hours of video decoded before they are refused."""
    monkeypatch.setattr(footage, "MOST_FRAMES", 3)
    seen: list[int] = []
    check = clip.check_picture_size
    monkeypatch.setattr(clip, "check_picture_size", lambda *size: seen.append(1) or check(*size))
    with pytest.raises(BadInput, match="give a clip of 1 to 3"):
        count_frames(film(tmp_path / "long.mkv", [n / 16 for n in range(40)]))
    assert len(seen) < 8


@pytest.mark.parametrize(("frames", "shown"), [(2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 2, 2])])
def test_a_clip_fills_so_many_frames(frames, shown):
    three = Footage(torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2), "")
    assert (three.fill(frames)[0, :, 0, 0, 0] * 255).round().int().tolist() == shown
    front = [0] * (frames - 3) + list(range(3)) if frames >= 3 else [1, 2]
    assert (three.fill(frames, first=3 - frames)[0, :, 0, 0, 0] * 255).round().int().tolist() == front


@pytest.mark.parametrize("what", ["playlist", "list", "text", "empty", "folder", "missing", "long"])
def test_what_is_no_clip_is_refused_in_a_sentence(what, tmp_path, monkeypatch):
    """Playlists name other files. Catches: one of them opened."""
    inner = film(tmp_path / "inner.mkv", [n / 16 for n in range(4)])
    path = tmp_path / {"playlist": "a.m3u8", "list": "a.ffconcat"}.get(what, f"{what}.mp4")
    if what == "playlist":
        path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{inner}\n#EXT-X-ENDLIST\n")
    elif what == "list":
        path.write_text(f"ffconcat version 1.0\nfile {inner.name}\n")
    elif what == "folder":
        path.mkdir()
    elif what == "long":
        monkeypatch.setattr(footage, "MOST_FRAMES", 3)
        path = inner
    elif what != "missing":
        path.write_text("" if what == "empty" else "no video")
    with pytest.raises(BadInput, match=r"^[^\n]*; (give|check) [^\n]*$"):
        read_footage(path, 32, 32)


def test_a_frame_a_year_later_takes_no_memory(tmp_path):
    """Catches: the frame before it repeated until then."""
    with pytest.raises(BadInput, match="give a clip of 1 to"):
        read_footage(film(tmp_path / "year.mkv", [0, 3e7]), 32, 32)
