"""Containers that are read, files that were cut off, and what is said of a container that is not read."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sdvg_core.errors import BadInput
from sdvg_core.files.footage import Footage, count_frames, read_footage, time_stamps

FRAMES = 25
PAL = (720, 576)
CONTAINERS = {
    "a.mpg": {"codec": "mpeg2video"},
    "a.vob": {"codec": "mpeg2video"},
    "a.m2v": {"codec": "mpeg2video"},
    "a.wmv": {"codec": "wmv2"},
    "a.flv": {"codec": "flv"},
    "a.y4m": {"codec": "wrapped_avframe"},
    "a.mxf": {"codec": "mpeg2video", "size": PAL},
    "a.dv": {"codec": "dvvideo", "size": PAL, "sound": "pcm_s16le"},
}


def video(
    path: Path,
    codec: str = "libx264",
    size: tuple[int, int] = (64, 64),
    *,
    sound: str = "",
    muxer: dict[str, str] | None = None,
    noise: bool = False,
) -> Path:
    """Write a second of 25 frames, of which number n is grey of 10 n, or noise."""
    random = np.random.default_rng(0)
    with av.open(str(path), "w", options=muxer or {}) as file:
        stream: Any = file.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        audio: Any = file.add_stream(sound, rate=48000, layout="stereo") if sound else None
        for number in range(FRAMES):
            level = np.full((size[1], size[0], 3), 10 * number, np.uint8)
            picture = random.integers(0, 256, level.shape, np.uint8) if noise else level
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts = number
            frame.time_base = Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        if sound:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 2 * 48000), np.int16), format="s16", layout="stereo")
            silence.sample_rate = 48000
            file.mux(audio.encode(silence))
    return path


@pytest.mark.parametrize("name", CONTAINERS)
def test_each_container_gives_its_frames(name, tmp_path):
    """Catches: a container that FFmpeg reads and people have, refused. The newest frame at each sixteenth."""
    path = video(tmp_path / name, **CONTAINERS[name])
    shown = (read_footage(path, 32, 32).pixels[:, 0, 16, 16] / 10).round().int().tolist()
    assert shown == [moment * 25 // 16 for moment in range(16)]
    assert count_frames(path) == 16


@pytest.mark.parametrize("name", ["a.nut", "a.ivf", "a.h264"])
def test_unread_container_is_named_as_the_fault(name, tmp_path):
    """Catches: *Invalid argument* with the whole path, for a file that is whole."""
    path = video(tmp_path / name, "libvpx-vp9" if name == "a.ivf" else "libx264")
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput, match=rf"^{name} is in a container ") as refusal:
            read(path)
        assert str(tmp_path) not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"no video", b"\x1aE\xdf\xa3" + bytes(40), b"\0\0\0\x08ftyp" + bytes(40)])
def test_refusals_show_no_folder(content, tmp_path):
    """Catches: a message of FFmpeg's, which holds the whole path, passed on."""
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"^a\.mp4 ") as refusal:
        read_footage(path, 32, 32)
    assert str(tmp_path) not in str(refusal.value)


def test_unknown_codec_is_refused(tmp_path):
    """Catches: an `AttributeError` of ours, passed on as what is wrong with the file."""
    path = video(tmp_path / "a.mkv", "ffv1")
    path.write_bytes(path.read_bytes().replace(b"V_FFV1", b"V_FUV1"))
    with pytest.raises(BadInput, match=r"^a\.mkv has a codec "):
        read_footage(path, 32, 32)
    with pytest.raises(BadInput, match=r"has a codec "):
        time_stamps(str(path), 0, 0)


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}


RECORDINGS = {
    "a.mp4": FRAGMENTS,
    "a.mov": FRAGMENTS,
    "b.mp4": {"movflags": "faststart"},
    "a.flv": {},
    "a.avi": {},
}


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request, tmp_path_factory) -> tuple[Path, Footage]:
    """A file of noise, and what is read of it while it is whole."""
    path = video(tmp_path_factory.mktemp("whole") / request.param, muxer=RECORDINGS[request.param], noise=True)
    return path, read_footage(path, 32, 32)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_file_cut_off_is_read_to_the_cut(recording, share, tmp_path):
    """Catches: a recording refused whole for its last packet; a half frame taken for a whole one; nothing said."""
    file, whole = recording
    content = file.read_bytes()
    path = tmp_path / file.name
    path.write_bytes(content[: int(share * len(content))])
    cut = read_footage(path, 32, 32)
    assert 16 * share - 5 < cut.frames < 16 * share + 2
    assert (cut.pixels == whole.pixels[: cut.frames]).all()
    assert "cut off" in cut.note
    assert "cut off" not in whole.note
    assert count_frames(path) == cut.frames
