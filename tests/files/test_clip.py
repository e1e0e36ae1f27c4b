"""Clips that are read: what a file says of itself is honoured, or said; nothing but video files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from av.stream import Disposition

from sdvg_core.errors import BadInput
from sdvg_core.files import clip as clips
from sdvg_core.files import footage
from sdvg_core.files.clip import UNSTATED_COLOUR
from sdvg_core.files.footage import Footage, count_frames, read_footage
from sdvg_core.files.video import write_mp4
from tests.support.sounds import greys

SIZE = 96
COLOURS = np.array([[200, 60, 40], [30, 180, 90], [70, 50, 210], [255, 255, 255], [0, 0, 0], [128, 128, 128]]) / 255
# Kr and Kb of Rec. ITU-R BT.601, BT.709 and BT.2020, and the number of each matrix in ISO/IEC 23091-2.
STANDARDS = {"601": (0.299, 0.114, 6), "709": (0.2126, 0.0722, 1), "2020": (0.2627, 0.0593, 9)}
LIMITED, FULL = 1, 2


def planes_of(rgb: np.ndarray, standard: str, bits: int, kind: int) -> np.ndarray:
    """Return Y', Cb and Cr of colours `n 3` as the standard quantises them, not rounded: `n 3`."""
    kr, kb, _ = STANDARDS[standard]
    luma = rgb @ np.array([kr, 1 - kr - kb, kb])
    chroma = np.stack([(rgb[:, 2] - luma) / (2 - 2 * kb), (rgb[:, 0] - luma) / (2 - 2 * kr)], axis=1)
    if kind == FULL:
        return np.column_stack([luma * (2**bits - 1), chroma * (2**bits - 1) + 2 ** (bits - 1)])
    return np.column_stack([16 + 219 * luma, 128 + 224 * chroma]) * 2 ** (bits - 8)


def colours_of(planes: np.ndarray, standard: str, bits: int, kind: int) -> np.ndarray:
    """Return what whole numbers of Y', Cb and Cr are in RGB of 255."""
    kr, kb, _ = STANDARDS[standard]
    if kind == FULL:
        luma, chroma = planes[:, 0] / (2**bits - 1), (planes[:, 1:] - 2 ** (bits - 1)) / (2**bits - 1)
    else:
        luma, chroma = (planes[:, 0] / 2 ** (bits - 8) - 16) / 219, (planes[:, 1:] / 2 ** (bits - 8) - 128) / 224
    red, blue = luma + (2 - 2 * kr) * chroma[:, 1], luma + (2 - 2 * kb) * chroma[:, 0]
    return (np.stack([red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue], axis=1) * 255).clip(0, 255)


def frame_of(planes: np.ndarray, kind: str, bits: int, height: int = SIZE) -> av.VideoFrame:
    """Return a frame of three columns and two rows of flat colours, given as values of the planes `6 p`."""
    frame = av.VideoFrame(SIZE, height, kind)
    for plane, values in zip(frame.planes, planes.T, strict=True):
        row = np.frombuffer(plane, np.uint8 if bits == 8 else "<u2").reshape(plane.height, -1).copy()
        cells = values.reshape(2, 3).repeat(plane.height // 2, axis=0).repeat(plane.width // 3, axis=1)
        row[:, : plane.width] = cells
        plane.update(row.tobytes())
    return frame


def film(path: Path, frames: Iterator[Any] | list[Any], *, codec: str = "ffv1", **settings: Any) -> Path:
    """Write frames without loss, 16 a second; `settings` are the stream's."""
    options = settings.pop("options", {})
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=settings.pop("rate", 16), options=options)
        for number, frame in enumerate(frames):
            if number == 0:
                stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, frame.format.name
                for name, value in settings.items():
                    setattr(stream.codec_context, name, value)
            frame.colorspace = stream.codec_context.colorspace
            frame.color_range = stream.codec_context.color_range
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def numbers(path: Path) -> list[int]:
    return (read_footage(path, 32, 32).pixels[:, 0, 16, 16] / 10).round().int().tolist()


@pytest.mark.parametrize("kind", [LIMITED, FULL], ids=["limited", "full"])
@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("sampling", ["420", "422", "444"])
@pytest.mark.parametrize("standard", STANDARDS)
def test_colours_are_within_half_a_level_of_the_standard(standard, sampling, bits, kind, tmp_path):
    """The kind: a standard's colours read as another's, or rounded down. Of whole numbers in the planes."""
    planes = planes_of(COLOURS, standard, bits, kind).round().clip(0, 2**bits - 1)
    frame = frame_of(planes, f"yuv{sampling}p" + ("10le" if bits == 10 else ""), bits)
    path = film(tmp_path / "c.mkv", [frame], colorspace=STANDARDS[standard][2], color_range=kind)
    read = read_footage(path, SIZE, SIZE).pixels[0, :, 24::48, 16::32].flatten(1).T.numpy()
    assert np.abs(read - colours_of(planes, standard, bits, kind)).max() <= 0.55


@pytest.mark.parametrize(
    ("height", "standard", "bits"), [(96, "601", 10), (576, "601", 8), (720, "709", 8), (1080, "709", 8)]
)
def test_an_unmarked_clip_is_read_by_its_rows(height, standard, bits, tmp_path):
    """As players do: BT.601 below 720 rows, limited range. Catches: one matrix for every unmarked clip."""
    planes = planes_of(COLOURS, standard, bits, LIMITED).round()
    kind = "yuv420p10le" if bits == 10 else "yuv420p"
    path = film(tmp_path / "unmarked.mkv", [frame_of(planes, kind, bits, height)])
    with av.open(str(path)) as file:
        codec = file.streams.video[0].codec_context
        assert (codec.colorspace, codec.color_range) == (UNSTATED_COLOUR, 0)
    read = read_footage(path, SIZE, height).pixels[0, :, height // 4 :: height // 2, 16::32]
    shown = read.flatten(1).T.numpy()
    assert np.abs(shown - colours_of(planes, standard, bits, LIMITED)).max() <= 0.55


@pytest.mark.parametrize(
    ("kind", "bits", "scan", "black", "white"),
    [
        ("gray", 8, 0, 0, 255),
        ("gray", 8, LIMITED, 16, 235),
        ("gray10le", 10, LIMITED, 64, 940),
        ("gray10le", 10, FULL, 0, 1023),
        ("gbrp10le", 10, 0, 0, 1023),
    ],
)
def test_grey_and_rgb_of_any_depth_are_within_half_a_level(kind, bits, scan, black, white, tmp_path):
    """FFmpeg takes grey for full range, and white of ten bits for 255.75 of 255."""
    order = [1, 2, 0] if kind.startswith("gbrp") else [0]
    given = COLOURS if len(order) == 3 else COLOURS[:, [0, 0, 0]]
    values = (black + (white - black) * given).round()
    path = film(tmp_path / "c.mkv", [frame_of(values[:, order], kind, bits)], color_range=scan)
    read = read_footage(path, SIZE, SIZE).pixels[0, :, 24::48, 16::32].flatten(1).T.numpy()
    assert np.abs(read - (values - black) / (white - black) * 255).max() <= 0.55


def test_colours_stay_where_they_are_for_eight_rounds_of_writing_and_reading(tmp_path):
    """The kind: a loss at every round. Means of a smooth clip and of a grey one, and where a red square lies."""
    noise = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(noise, (120, 208), mode="bicubic").clamp(0.05, 0.95)
    grey = smooth.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    square = torch.full((4, 3, 120, 208), 0.3)
    square[:, 0, 40:80, 84:124] = 0.9
    for clip, most in ((smooth, 1), (grey, 0.5), (square, 1)):
        shown = clip
        for _ in range(8):
            write_mp4(tmp_path / "clip.mp4", shown, fps=16)
            shown = read_footage(tmp_path / "clip.mp4", 208, 120).fill(4)[0]
        assert (shown - clip).mean(dim=(0, 2, 3)).abs().max() * 255 <= most
    red = (shown[0, 0] - shown[0, 1]).clamp(min=0)
    middle = [float((red.sum(dim=1 - axis) * torch.arange(red.shape[axis])).sum() / red.sum()) for axis in (0, 1)]
    assert middle == pytest.approx([59.5, 103.5], abs=0.15)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"colorspace": 9, "color_trc": 16}, "HDR (PQ)"),
        ({"colorspace": 9, "color_trc": 18}, "HDR (HLG)"),
        ({"colorspace": 1, "color_trc": 8}, "linear light"),
        ({"colorspace": 8}, "colour matrix 8"),
    ],
)
def test_colours_that_are_not_read_are_refused_in_a_sentence(settings, says, tmp_path):
    """The kind: light or matrices that would be read as if they were ordinary ones."""
    path = film(tmp_path / "hdr.mkv", [frame_of(np.full((6, 3), 128), "yuv420p", 8)], **settings)
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput) as refused:
            read(path)
        fault = f"hdr.mkv is in {says}, which is not read"
        assert str(refused.value) == f"{fault}; convert it to BT.709 (troubleshooting: Colours are wrong)"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"color_primaries": 9}, "32x32, its BT.2020 primaries taken as BT.709's, taken as 1"),
        ({"kind": "yuva420p", "codec": "libvpx-vp9"}, "32x32, without its alpha, taken as 1"),
    ],
)
def test_what_is_not_honoured_is_said(settings, says, tmp_path):
    """The decoder of VP9 in FFmpeg leaves alpha out, so its frames have none to be seen by."""
    frames = [frame.reformat(format=settings.pop("kind", "yuv420p")) for frame in greys(1)]
    assert says in read_footage(film(tmp_path / "c.mkv", frames, **settings), 32, 32).note


def test_pixels_that_are_not_square_are_made_square(tmp_path):
    """A disc drawn in the pixels of wide PAL, 64 columns for 36 rows of 4:3 height. Catches: an oval."""
    rows, columns = np.mgrid[:144, :180]
    aspect = 64 / 45
    disc = ((rows - 71.5) ** 2 + ((columns - 89.5) * aspect) ** 2 < 50**2).astype(np.uint8)[..., None] * 255
    frame = av.VideoFrame.from_ndarray(disc.repeat(3, axis=2), format="rgb24").reformat(format="yuv444p")
    path = film(tmp_path / "pal.mp4", [frame], codec="libx264", sample_aspect_ratio=Fraction(64, 45))
    read = read_footage(path, 256, 144)
    inside = read.pixels[0, 0] > 127
    assert abs(int(inside.any(0).sum()) - 100) <= 1
    assert abs(int(inside.any(1).sum()) - 100) <= 1
    assert "256x144, taken" in read.note


def test_interlaced_frames_are_deinterlaced_and_said(tmp_path):
    """An edge that moves a pixel a field: rows of one frame agree. Catches: combs, and frames lost on the way."""
    frames = []
    for number in range(12):
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[0::2, 4 * number :] = 220
        picture[1::2, 4 * number + 2 :] = 220
        frames.append(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p"))
    options = {"qp": "0", "flags": "+ildct+ilme", "x264-params": "tff=1"}
    path = film(tmp_path / "i.mp4", frames, codec="libx264", options=options)
    read = read_footage(path, 64, 64)
    rows = read.pixels[2:, 0, 8:56].float()
    assert (rows[:, 1:] - rows[:, :-1]).abs().mean() < 2
    edges = (rows < 110).sum(dim=2).float().mean(dim=1)
    assert torch.allclose(edges, 4 * torch.arange(2.0, 12), atol=2)
    assert count_frames(path) == read.frames == 12
    assert "64x64, deinterlaced, taken as 12" in read.note


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_cover_is_not_taken_for_the_video(container, marked, tmp_path):
    """The kind: several streams, of which one is meant."""
    path = tmp_path / f"covered.{container}"
    with av.open(str(path), "w") as file:
        cover: Any = file.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 256, 256, "yuvj420p"
        video: Any = file.add_stream("libx264", rate=16, options={"qp": "0"})
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        if marked:
            try:
                cover.disposition = Disposition.attached_pic
            except TypeError:
                pytest.skip("this PyAV marks no cover")
        picture = av.VideoFrame.from_ndarray(np.full((256, 256, 3), 200, np.uint8), format="rgb24")
        file.mux(cover.encode(picture.reformat(format="yuvj420p")))
        file.mux(cover.encode())
        for frame in greys(6):
            file.mux(video.encode(frame))
        file.mux(video.encode())
    assert numbers(path) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("container", ["avi", "mkv", "mp4"])
def test_frames_keep_their_order_where_time_stamps_go_backwards(container, tmp_path):
    """AVI has no room for the time of B-frames. Catches: frames repeated and left out."""
    options = {"crf": "1", "bf": "3", "b_strategy": "0"}
    path = film(tmp_path / f"b.{container}", greys(20, 64), codec="libx264", options=options)
    assert numbers(path) == list(range(20))
    assert count_frames(path) == 20
    assert ("counted as 16 a second" in read_footage(path, 32, 32).note) == (container == "avi")


ONE, NONE, MINUS = (65536).to_bytes(4, "big"), bytes(4), (-65536).to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("matrix", "size", "red", "black"),
    [
        (MINUS + 3 * NONE + ONE, (64, 32), np.s_[:12, 36:], (np.s_[:12, :28], np.s_[20:])),
        (NONE + ONE + NONE + MINUS + NONE, (32, 64), np.s_[:28, 20:], (np.s_[:28, :12], np.s_[36:])),
    ],
    ids=["mirrored, as a front camera files it", "a phone held upright"],
)
def test_a_clip_that_lies_otherwise_and_says_so_is_read_as_it_is_shown(matrix, size, red, black, tmp_path):
    """Red is at the top left in the file. Catches: sideways, upside down, or turned the other way."""
    path = tmp_path / "clip.mp4"
    frames = torch.zeros(2, 3, 32, 64)
    frames[:, 0, :16, :32] = 1
    write_mp4(path, frames, fps=16)
    header, plain, track = path.read_bytes().rpartition(ONE + 3 * NONE + ONE)
    assert plain, "the track's matrix"
    path.write_bytes(header + matrix + track)
    shown = read_footage(path, *size)
    pixels = shown.pixels[0, 0].float()
    assert pixels[red].mean() > 200 > 60 > max(pixels[place].mean() for place in black)
    assert f"{size[0]}x{size[1]}, taken" in shown.note


def test_a_file_with_sound_alone_is_no_clip(tmp_path):
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=44100, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        file.mux(stream.encode(sound))
        file.mux(stream.encode())
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput, match=r"^song\.m4a holds no video; give an mp4, webm or mov$"):
            read(path)


def timed(path: Path, times: list[float], *, size: tuple[int, int] = (32, 32)) -> Path:
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


def first_greys(read: Footage) -> list[int]:
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
    path = timed(tmp_path / "clip.mkv", times)
    assert first_greys(read_footage(path, 32, 32))[: len(shown)] == shown
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


def test_a_clip_that_is_damaged_in_its_middle_is_refused_or_read(tmp_path):
    """Never a traceback, by whichever of both functions."""
    path = timed(tmp_path / "whole.mkv", [n / 16 for n in range(20)])
    content = path.read_bytes()
    for at in range(200, len(content), 97):
        path.write_bytes(content[:at] + b"\xff\x00\x5a" * 8 + content[at + 24 :])
        for read in (count_frames, lambda path: read_footage(path, 32, 32)):
            with suppress(BadInput):
                read(path)


def test_frames_are_counted_no_further_than_a_clip_may_be_long(tmp_path, monkeypatch):
    """Catches: hours of video decoded before they are refused."""
    monkeypatch.setattr(footage, "MOST_FOOTAGE_FRAMES", 3)
    seen: list[int] = []
    check = clips.check_picture_size
    monkeypatch.setattr(clips, "check_picture_size", lambda *size: seen.append(1) or check(*size))
    with pytest.raises(BadInput, match="give a clip of 1 to 3"):
        count_frames(timed(tmp_path / "long.mkv", [n / 16 for n in range(40)]))
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
    inner = timed(tmp_path / "inner.mkv", [n / 16 for n in range(4)])
    path = tmp_path / {"playlist": "a.m3u8", "list": "a.ffconcat"}.get(what, f"{what}.mp4")
    if what == "playlist":
        path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{inner}\n#EXT-X-ENDLIST\n")
    elif what == "list":
        path.write_text(f"ffconcat version 1.0\nfile {inner.name}\n")
    elif what == "folder":
        path.mkdir()
    elif what == "long":
        monkeypatch.setattr(footage, "MOST_FOOTAGE_FRAMES", 3)
        path = inner
    elif what != "missing":
        path.write_text("" if what == "empty" else "no video")
    with pytest.raises(BadInput, match=r"^[^\n]*; (give|check) [^\n]*$"):
        read_footage(path, 32, 32)


def test_a_frame_a_year_later_takes_no_memory(tmp_path):
    """Catches: the frame before it repeated until then."""
    with pytest.raises(BadInput, match="give a clip of 1 to"):
        read_footage(timed(tmp_path / "year.mkv", [0, 3e7]), 32, 32)
