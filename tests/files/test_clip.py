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
from sdvg_core.files.clip import UNSTATED_COLOUR, open_clip
from sdvg_core.files.footage import Footage, count_frames, read_footage
from sdvg_core.files.video import write_mp4
from tests.support.sounds import greys, tone

SIZE = 96
COLOURS = np.array([[200, 60, 40], [30, 180, 90], [70, 50, 210], [255, 255, 255], [0, 0, 0], [128, 128, 128]]) / 255
# Kr and Kb of Rec. ITU-R BT.601, BT.709 and BT.2020, and the number of each matrix in ISO/IEC 23091-2.
STANDARDS = {"601": (0.299, 0.114, 6), "709": (0.2126, 0.0722, 1), "2020": (0.2627, 0.0593, 9)}
LIMITED = 1
FULL = 2


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
        luma = planes[:, 0] / (2**bits - 1)
        chroma = (planes[:, 1:] - 2 ** (bits - 1)) / (2**bits - 1)
    else:
        luma = (planes[:, 0] / 2 ** (bits - 8) - 16) / 219
        chroma = (planes[:, 1:] / 2 ** (bits - 8) - 128) / 224
    red = luma + (2 - 2 * kr) * chroma[:, 1]
    blue = luma + (2 - 2 * kb) * chroma[:, 0]
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return (np.stack([red, green, blue], axis=1) * 255).clip(0, 255)


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
                stream.width = frame.width
                stream.height = frame.height
                stream.pix_fmt = frame.format.name
                for name, value in settings.items():
                    setattr(stream.codec_context, name, value)
            frame.colorspace = stream.codec_context.colorspace
            frame.color_range = stream.codec_context.color_range
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def numbers(path: Path) -> list[int]:
    """Return which of `greys` each frame is."""
    return (read_footage(path, 32, 32).pixels[:, 0, 16, 16] / 10).round().int().tolist()


def test_part_with_the_first_frame_has_the_sound(tmp_path: Path) -> None:
    """Catches: the sound of a clip in every shot that uses a part of it; a part of no frame."""
    whole = read_footage(tone(tmp_path / "clip.mkv", "flac"), 32, 32)
    assert whole.sound is not None
    first = whole.part(0, 9)
    later = whole.part(9, None)
    assert (first.frames, first.sound) == (9, whole.sound)
    assert (later.frames, later.sound) == (whole.frames - 9, None)
    assert torch.equal(whole.part(999, None).pixels, whole.pixels[-1:])


def test_newest_frame_is_taken_at_each_moment() -> None:
    """Of 15 frames at 30 a second that begin at 5 s. Catches: the frame before, or the next one."""
    times = [5 + Fraction(number, 30) for number in range(15)]
    assert footage.newest_at(times, Fraction(1, 30), "clip") == [0, 1, 3, 5, 7, 9, 11, 13]


@pytest.mark.parametrize("kind", [LIMITED, FULL], ids=["limited", "full"])
@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("sampling", ["420", "422", "444"])
@pytest.mark.parametrize("standard", STANDARDS)
def test_colours_are_those_of_the_standard(standard, sampling, bits, kind, tmp_path):
    """Within half a level. Catches: a standard's colours read as another's, or rounded down."""
    planes = planes_of(COLOURS, standard, bits, kind).round().clip(0, 2**bits - 1)
    frame = frame_of(planes, f"yuv{sampling}p" + ("10le" if bits == 10 else ""), bits)
    path = film(tmp_path / "c.mkv", [frame], colorspace=STANDARDS[standard][2], color_range=kind)
    read = read_footage(path, SIZE, SIZE).pixels[0, :, 24::48, 16::32].flatten(1).T.numpy()
    assert np.abs(read - colours_of(planes, standard, bits, kind)).max() <= 0.55


@pytest.mark.parametrize(
    ("height", "standard", "bits"), [(96, "601", 10), (576, "601", 8), (720, "709", 8), (1080, "709", 8)]
)
def test_unmarked_clip_is_read_by_its_rows(height, standard, bits, tmp_path):
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
def test_grey_and_rgb_keep_their_levels(kind, bits, scan, black, white, tmp_path):
    """Within half a level. Catches what FFmpeg does: grey as full range, white of ten bits as 255.75 of 255."""
    order = [1, 2, 0] if kind.startswith("gbrp") else [0]
    colours = COLOURS if len(order) == 3 else COLOURS[:, [0, 0, 0]]
    values = (black + (white - black) * colours).round()
    path = film(tmp_path / "c.mkv", [frame_of(values[:, order], kind, bits)], color_range=scan)
    read = read_footage(path, SIZE, SIZE).pixels[0, :, 24::48, 16::32].flatten(1).T.numpy()
    assert np.abs(read - (values - black) / (white - black) * 255).max() <= 0.55


NOISE = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SMOOTH = torch.nn.functional.interpolate(NOISE, (120, 208), mode="bicubic").clamp(0.05, 0.95)


def eight_rounds(clip: torch.Tensor, path: Path) -> torch.Tensor:
    """Write a clip and read it, eight times; return frames `f c h w`."""
    for _ in range(8):
        write_mp4(path, clip, fps=16)
        clip = read_footage(path, 208, 120).fill(4)[0]
    return clip


@pytest.mark.parametrize(
    ("clip", "most"), [(SMOOTH, 1), (SMOOTH.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1), 0.5)]
)
def test_eight_rounds_of_writing_change_no_colour(clip, most, tmp_path):
    """Catches: a loss of brightness at every round; `most`: levels of 255."""
    difference = eight_rounds(clip, tmp_path / "clip.mp4") - clip
    assert difference.mean(dim=(0, 2, 3)).abs().max() * 255 <= most


def test_eight_rounds_of_writing_move_no_colour(tmp_path):
    """A red square. Catches: chroma that lies a quarter of a pixel aside, in every round."""
    clip = torch.full((4, 3, 120, 208), 0.3)
    clip[:, 0, 40:80, 84:124] = 0.9
    shown = eight_rounds(clip, tmp_path / "clip.mp4")
    assert (shown - clip).mean(dim=(0, 2, 3)).abs().max() * 255 <= 1
    red = (shown[0, 0] - shown[0, 1]).clamp(min=0)
    row = (red.sum(dim=1) * torch.arange(120)).sum() / red.sum()
    column = (red.sum(dim=0) * torch.arange(208)).sum() / red.sum()
    assert (float(row), float(column)) == pytest.approx((59.5, 103.5), abs=0.15)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"colorspace": 9, "color_trc": 16}, "HDR (PQ)"),
        ({"colorspace": 9, "color_trc": 18}, "HDR (HLG)"),
        ({"colorspace": 1, "color_trc": 8}, "linear light"),
        ({"colorspace": 1, "color_trc": 9}, "logarithmic light"),
        ({"colorspace": 1, "color_trc": 10}, "logarithmic light"),
        ({"colorspace": 8}, "colour matrix 8"),
    ],
)
def test_unread_colours_are_refused(settings, kind, tmp_path):
    """Catches: light or matrices that are read as if they were ordinary ones."""
    path = film(tmp_path / "hdr.mkv", [frame_of(np.full((6, 3), 128), "yuv420p", 8)], **settings)
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput) as refusal:
            read(path)
        assert f"hdr.mkv is in {kind}" in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"color_primaries": 9}, "BT.2020 primaries"),
        ({"color_primaries": 11}, "DCI-P3 primaries"),
        ({"color_primaries": 12}, "Display P3 primaries"),
        ({"kind": "yuva420p", "codec": "libvpx-vp9"}, "without its alpha"),
    ],
)
def test_ignored_properties_are_noted(settings, note, tmp_path):
    """The decoder of VP9 in FFmpeg leaves alpha out, so its frames have none to be seen by."""
    frames = [frame.reformat(format=settings.pop("kind", "yuv420p")) for frame in greys(1)]
    assert note in read_footage(film(tmp_path / "c.mkv", frames, **settings), 32, 32).note


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


@pytest.mark.parametrize(("columns", "shown"), [(64, 58), (68, 62), (70, 64), (72, 65), (88, 80)])
def test_width_in_square_pixels_is_rounded(columns, shown, tmp_path):
    """Of NTSC, 10 columns for 11 rows. Catches: a width cut off, or another one for the alpha of a frame."""
    frame = av.VideoFrame.from_ndarray(np.zeros((64, columns, 3), np.uint8), format="rgb24")
    path = film(
        tmp_path / "n.mp4",
        [frame.reformat(format="yuv444p")],
        codec="libx264",
        sample_aspect_ratio=Fraction(10, 11),
    )
    with open_clip(path) as clip:
        (decoded,) = clip.frames()
        assert clip.picture(decoded).size == (shown, 64)
        assert clip.alpha(decoded).size == (shown, 64)


INTERLACED = {"qp": "0", "flags": "+ildct+ilme", "x264-params": "tff=1"}


def test_interlaced_frames_are_deinterlaced(tmp_path):
    """An edge that moves a pixel a field: rows of one frame agree. Catches: combs, and frames lost on the way."""
    frames = []
    for number in range(12):
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[0::2, 4 * number :] = 220
        picture[1::2, 4 * number + 2 :] = 220
        frames.append(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p"))
    path = film(tmp_path / "i.mp4", frames, codec="libx264", options=INTERLACED)
    read = read_footage(path, 64, 64)
    rows = read.pixels[2:, 0, 8:56].float()
    assert (rows[:, 1:] - rows[:, :-1]).abs().mean() < 2
    edges = (rows < 110).sum(dim=2).float().mean(dim=1)
    assert torch.allclose(edges, 4 * torch.arange(2.0, 12), atol=2)
    assert count_frames(path) == read.frames == 12
    assert "deinterlaced" in read.note


def test_interlaced_pictures_may_become_wider(tmp_path):
    """As in a broadcast. Catches: wide pictures squeezed into the first size; frames lost at the change."""
    path = tmp_path / "both.ts"
    for width in (64, 96):
        frames = [av.VideoFrame(width, 64, "yuv420p") for _ in range(4)]
        part = film(tmp_path / "part.ts", frames, codec="libx264", options=INTERLACED)
        with path.open("ab") as file:
            file.write(part.read_bytes())
    with open_clip(path) as clip:
        assert [frame.width for frame in clip.frames()] == [64] * 4 + [96] * 4


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_cover_is_not_taken_for_the_video(container, marked, tmp_path):
    """Catches: another of several streams taken than the one meant."""
    path = tmp_path / f"covered.{container}"
    with av.open(str(path), "w") as file:
        cover: Any = file.add_stream("mjpeg", rate=1)
        cover.width = 256
        cover.height = 256
        cover.pix_fmt = "yuvj420p"
        video: Any = file.add_stream("libx264", rate=16, options={"qp": "0"})
        video.width = 32
        video.height = 32
        video.pix_fmt = "yuv420p"
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
def test_frames_keep_their_order_without_time_stamps(container, tmp_path):
    """AVI has no room for the time of B-frames. Catches: frames repeated and left out."""
    options = {"crf": "1", "bf": "3", "b_strategy": "0"}
    path = film(tmp_path / f"b.{container}", greys(20, 64), codec="libx264", options=options)
    assert numbers(path) == list(range(20))
    assert count_frames(path) == 20
    assert ("counted as 16 a second" in read_footage(path, 32, 32).note) == (container == "avi")


PLUS = (65536).to_bytes(4, "big")
ZERO = bytes(4)
MINUS = (-65536).to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("matrix", "size", "red", "black"),
    [
        (MINUS + 3 * ZERO + PLUS, (64, 32), np.s_[:12, 36:], (np.s_[:12, :28], np.s_[20:])),
        (ZERO + PLUS + ZERO + MINUS + ZERO, (32, 64), np.s_[:28, 20:], (np.s_[:28, :12], np.s_[36:])),
    ],
    ids=["mirrored, as a front camera files it", "a phone held upright"],
)
def test_turned_clip_is_read_as_it_is_shown(matrix, size, red, black, tmp_path):
    """Red is at the top left in the file. Catches: sideways, upside down, or turned the other way."""
    path = tmp_path / "clip.mp4"
    frames = torch.zeros(2, 3, 32, 64)
    frames[:, 0, :16, :32] = 1
    write_mp4(path, frames, fps=16)
    header, plain, track = path.read_bytes().rpartition(PLUS + 3 * ZERO + PLUS)
    assert plain, "the track's matrix"
    path.write_bytes(header + matrix + track)
    shown = read_footage(path, *size)
    pixels = shown.pixels[0, 0].float()
    assert pixels[red].mean() > 200 > 60 > max(pixels[place].mean() for place in black)
    assert f"{size[0]}x{size[1]}, taken" in shown.note


def test_file_of_sound_alone_is_refused(tmp_path):
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=44100, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        sound.sample_rate = 44100
        file.mux(stream.encode(sound))
        file.mux(stream.encode())
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput, match=r"^song\.m4a holds no video"):
            read(path)


def timed(path: Path, times: list[float], *, size: tuple[int, int] = (32, 32)) -> Path:
    """Write frames that are shown from these seconds on; frame n is grey of 10 n."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=1000)
        stream.width, stream.height = size
        stream.pix_fmt = "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, at in enumerate(times):
            grey = np.full((size[1], size[0], 3), 10 * number % 250, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
            frame.pts = round(at * 1000)
            frame.time_base = Fraction(1, 1000)
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
def test_newest_frame_is_shown_at_each_moment(times, shown, tmp_path):
    """By time stamps. Catches: frames taken by their index, whatever the rate; the last one lost."""
    path = timed(tmp_path / "clip.mkv", times)
    assert first_greys(read_footage(path, 32, 32))[: len(shown)] == shown
    assert read_footage(path, 32, 32).frames in (len(shown), len(shown) + 1)
    # How long the last frame is shown, a file does not say.
    assert count_frames(path) == read_footage(path, 32, 32).frames


def test_clip_of_another_shape_is_cropped(tmp_path):
    """In the middle. Catches: a disc in a wide clip that becomes an oval."""
    rows, columns = np.mgrid[:64, :160]
    disc = ((rows - 31.5) ** 2 + (columns - 79.5) ** 2 < 20**2).astype(np.float32)
    write_mp4(tmp_path / "wide.mp4", torch.from_numpy(disc).expand(2, 3, 64, 160), fps=16)
    read = read_footage(tmp_path / "wide.mp4", 64, 64)
    assert read.pixels.shape == (2, 3, 64, 64)
    inside = read.pixels[0, 0] > 127
    assert abs(int(inside.any(0).sum()) - int(inside.any(1).sum())) <= 2
    assert "160x64, taken as 2 frames at 16 a second in 64x64" in read.note


def test_damaged_clip_is_refused_or_read(tmp_path):
    """Damaged in its middle. Catches: a traceback, by either function."""
    path = timed(tmp_path / "whole.mkv", [n / 16 for n in range(20)])
    content = path.read_bytes()
    for at in range(200, len(content), 97):
        path.write_bytes(content[:at] + b"\xff\x00\x5a" * 8 + content[at + 24 :])
        for read in (count_frames, lambda path: read_footage(path, 32, 32)):
            with suppress(BadInput):
                read(path)


def test_longest_clip_is_read_whole(tmp_path, monkeypatch):
    """Catches: a clip of just as many frames as are allowed, refused."""
    monkeypatch.setattr(footage, "MOST_FOOTAGE_FRAMES", 4)
    clip = timed(tmp_path / "longest.mkv", [n / 16 for n in range(4)])
    assert count_frames(clip) == read_footage(clip, 32, 32).frames == 4


def test_counting_stops_at_the_longest_clip(tmp_path, monkeypatch):
    """Catches: hours of video decoded before they are refused."""
    monkeypatch.setattr(footage, "MOST_FOOTAGE_FRAMES", 3)
    sizes: list[tuple[int, ...]] = []
    check = clips.check_picture_size

    def noting(*size: int) -> None:
        sizes.append(size)
        check(*size)

    monkeypatch.setattr(clips, "check_picture_size", noting)
    with pytest.raises(BadInput, match="give a clip of 1 to 3"):
        count_frames(timed(tmp_path / "long.mkv", [n / 16 for n in range(40)]))
    assert len(sizes) < 8


@pytest.mark.parametrize(
    ("frames", "first", "shown"),
    [
        (2, 0, [0, 1]),
        (3, 0, [0, 1, 2]),
        (5, 0, [0, 1, 2, 2, 2]),
        (2, 1, [1, 2]),
        (5, -2, [0, 0, 0, 1, 2]),
    ],
)
def test_short_clip_is_filled_with_its_ends(frames, first, shown):
    clip = Footage(torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2), "")
    assert (clip.fill(frames, first=first)[0, :, 0, 0, 0] * 255).round().int().tolist() == shown


@pytest.mark.parametrize("what", ["playlist", "list", "text", "empty", "folder", "missing", "long"])
def test_file_that_is_no_clip_is_refused(what, tmp_path, monkeypatch):
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
    with pytest.raises(BadInput, match=r"^[^\n]*; (give|check) [^\n]*$") as refusal:
        read_footage(path, 32, 32)
    if what in ("playlist", "list"):
        assert "is in a container that is not read" in str(refusal.value)


def test_frame_a_year_later_takes_no_memory(tmp_path):
    """Catches: the frame before it repeated until then."""
    with pytest.raises(BadInput, match="give a clip of 1 to"):
        read_footage(timed(tmp_path / "year.mkv", [0, 3e7]), 32, 32)
