"""Pictures that are read: every mode at its own brightness, every frame of what moves, and nothing lost unsaid."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from sdvg_core.errors import BadInput
from sdvg_core.files import pictures
from sdvg_core.files.footage import count_frames, read_footage
from sdvg_core.files.pictures import pictures_in, read_image
from sdvg_core.files.video import write_mp4
from tests.support.thinned import every_pair

SIDE = 64
RAMP = np.linspace(0, 65535, SIDE * SIDE).reshape(SIDE, SIDE).astype(np.uint16)
EIGHT_BITS = Image.fromarray((RAMP / 257).round().astype(np.uint8))
OPAQUE = Image.new("L", (SIDE, SIDE), 255)
HOLE = OPAQUE.copy()
HOLE.putpixel((0, 0), 254)


def png(path: Path, colour_type: int, channels: int, *, animated: int = 0) -> None:
    """Write the ramp as a PNG with 16 bits in each channel. `animated`: how many frames it claims to have."""
    rows = np.repeat(RAMP[:, :, None], channels, axis=2).astype(">u2")
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 16, colour_type, 0, 0, 0)
    frames = [(b"acTL", struct.pack(">II", animated, 0))] if animated else []
    scanlines = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), *frames, (b"IDAT", scanlines), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(content)


def levels(path: Path) -> torch.Tensor:
    """Return the first channel in levels of 255, the same whether it is a start image or a clip."""
    still = read_image(path, SIDE, SIDE)[0][0, 0] * 255
    clip = read_footage(path, SIDE, SIDE).pixels[0]
    assert torch.equal(still.round().byte(), clip)
    assert torch.equal(still[0], still[2]), "the ramp is grey"
    return still[0].double()


DEEP = {
    "I;16.png": Image.fromarray(RAMP),
    "I;16.tif": Image.fromarray(RAMP),
    "I;16B.tif": Image.frombytes("I;16B", (SIDE, SIDE), RAMP.astype(">u2").tobytes()),
}
EIGHT = {
    "L.png": EIGHT_BITS,
    "L.bmp": EIGHT_BITS,
    "L.gif": EIGHT_BITS,
    "L.tif": EIGHT_BITS,
    "LA.png": Image.merge("LA", (EIGHT_BITS, HOLE)),
    "P.png": EIGHT_BITS.convert("P"),
    "P.tif": EIGHT_BITS.convert("P"),
    "LA.tif": Image.merge("LA", (EIGHT_BITS, HOLE)),
    "RGB.webp": EIGHT_BITS.convert("RGB"),
    "RGBA.tif": EIGHT_BITS.convert("RGBA"),
    "CMYK.tif": EIGHT_BITS.convert("RGB").convert("CMYK"),
}


@pytest.mark.parametrize("name", [*DEEP, *EIGHT])
def test_ramp_of_every_mode_keeps_its_brightness(name, tmp_path):
    """Half a level of 255. Catches: 16 bits cut off at 255: a depth map that is read as white; in any mode."""
    path = tmp_path / name
    {**DEEP, **EIGHT}[name].save(path, **({"lossless": True} if path.suffix == ".webp" else {}))
    wanted = torch.from_numpy(RAMP / 257 if name in DEEP else np.asarray(EIGHT_BITS, dtype=np.float64))
    assert (levels(path) - wanted).abs().max() <= (0.5 if name in DEEP else 0)


def colours_in(path: Path) -> list[torch.Tensor]:
    """Return the mean RGB of a picture alone in its folder: as start image, as clip, as the folder's clip."""
    still = read_image(path, 16, 16)[0][0, 0] * 255
    clips = [read_footage(source, 16, 16).pixels[0] for source in (path, path.parent)]
    return [pixels.double().mean((1, 2)) for pixels in (still, *clips)]


FLAT = Image.new("RGB", (SIDE, SIDE), (200, 60, 40))
LAB = ImageCms.createProfile("LAB")
COLOURED = {
    "P.png": (FLAT.quantize(4), 0),
    "P.bmp": (FLAT.quantize(4), 0),
    "P.gif": (FLAT.quantize(4), 0),
    "PA.tif": (FLAT.convert("RGBA").quantize(4).convert("PA"), 0),
    "RGBA.png": (FLAT.convert("RGBA"), 0),
    "RGBX.tif": (FLAT.convert("RGBX"), 0),
    "CMYK.tif": (FLAT.convert("CMYK"), 0),
    "CMYK.jpg": (FLAT.convert("CMYK"), 0),
    "YCbCr.tif": (FLAT.convert("YCbCr"), 2),
    "YCbCr.jpg": (FLAT.convert("YCbCr"), 2),
    "LAB.tif": (ImageCms.profileToProfile(FLAT, ImageCms.createProfile("sRGB"), LAB, outputMode="LAB"), 1),
    "RGB.avif": (FLAT, 1),
}


@pytest.mark.parametrize("name", COLOURED)
def test_colour_of_every_mode_is_kept(name, tmp_path):
    """As a start image, as a clip of one picture and in a folder; controls and masks are read as clips are."""
    picture, rounding = COLOURED[name]
    path = tmp_path / name
    picture.save(path)
    for colour in colours_in(path):
        assert (colour - torch.tensor([200.0, 60, 40])).abs().max() <= rounding + 1e-3


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_png_of_16_bits_is_not_shifted(colour_type, channels, tmp_path):
    """Grey is rounded; of the others Pillow keeps the high byte: less than a level off, and none on average."""
    png(tmp_path / "a.png", colour_type, channels)
    difference = levels(tmp_path / "a.png") - torch.from_numpy(RAMP / 257)
    assert difference.abs().max() < (0.501 if channels == 1 else 1)
    assert difference.mean().abs() < 0.01


def test_black_and_white_is_read_as_such(tmp_path):
    EIGHT_BITS.convert("1", dither=Image.Dither.NONE).save(tmp_path / "1.png")
    wanted = torch.from_numpy(np.where(np.asarray(EIGHT_BITS) >= 128, 255.0, 0.0))
    assert torch.equal(levels(tmp_path / "1.png"), wanted)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pictures_of_32_bits_are_refused(kind, tmp_path):
    """Catches: a depth map from 0 to 1 that is read as black."""
    Image.fromarray((RAMP / 65535).astype(kind)).save(tmp_path / "depth.tif")
    for read in (read_image, read_footage):
        with pytest.raises(BadInput, match=r"^depth\.tif has 32 bits a channel"):
            read(tmp_path / "depth.tif", SIDE, SIDE)


def test_wide_mode_of_older_pillow_is_read(tmp_path, monkeypatch):
    """Before 10.3, a grey PNG of 16 bits has 32 in memory."""
    path = tmp_path / "a.png"
    Image.fromarray(RAMP).save(path)
    wide = Image.fromarray(RAMP.astype(np.int32))
    monkeypatch.setattr(pictures.ImageOps, "exif_transpose", lambda _: wide)
    assert (levels(path) - torch.from_numpy(RAMP / 257)).abs().max() <= 0.5


# --- recognised by their content

NAMES = ("a.jfif", "a.jpg", "a.mp4", "a", "a.0001")
"""Of which one is a usual name of a JPEG, and none one of the other formats."""
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "AVIF")


@every_pair("name,kind", NAMES, KINDS)
def test_picture_is_known_by_its_content(name, kind, tmp_path):
    """Catches: a picture refused, or left out of its folder, for its name; a start image, a clip, in a folder."""
    if kind == "AVIF" and ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow reads no AVIF")
    path = tmp_path / name
    FLAT.save(path, format=kind)
    for colour in colours_in(path):
        assert (colour - torch.tensor([200.0, 60, 40])).abs().max() <= 10
    assert count_frames(path) == count_frames(tmp_path) == 1


@pytest.mark.parametrize("name", ["a.tif", "a.png", "a"])
def test_tiff_is_known_by_its_content(name, tmp_path):
    """Catches: a TIFF refused for its name."""
    FLAT.save(tmp_path / name, format="TIFF")
    assert count_frames(tmp_path / name) == 1
    assert pictures_in(tmp_path) == [tmp_path / name]


@pytest.mark.parametrize("name", ["1.nef", "1.CR2", "1.dng"])
def test_raw_files_beside_pictures_are_left_out(name, tmp_path):
    """Catches: every picture taken twice, from JPEG and raw, which begins like a TIFF."""
    FLAT.save(tmp_path / name, format="TIFF")
    FLAT.save(tmp_path / "1.jpg")
    assert pictures_in(tmp_path) == [tmp_path / "1.jpg"]


def test_video_with_a_pictures_name_is_read(tmp_path):
    """Catches: a video refused for its name."""
    write_mp4(tmp_path / "a.mp4", torch.zeros(3, 3, 32, 32), fps=16)
    (tmp_path / "a.mp4").rename(tmp_path / "a.png")
    assert count_frames(tmp_path / "a.png") == 3


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_damaged_picture_of_a_folder_is_refused(content, tmp_path):
    """Catches: a hole in a sequence that nobody says."""
    FLAT.save(tmp_path / "1.png")
    (tmp_path / "2.png").write_bytes(content)
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput, match=r"^2\.png .*picture"):
            read(tmp_path)


@pytest.mark.parametrize("ending", ["exr", "dpx", "heic"])
def test_folder_without_pictures_names_its_files(ending, tmp_path):
    """Catches: a folder full of pictures of another kind, of which is said that it has none."""
    for number in range(3):
        (tmp_path / f"plate.{number}.{ending}").write_bytes(b"v/1\x01\x02\0\0\0")
    with pytest.raises(BadInput, match=rf"plate\.0\.{ending}.*; .*PNG"):
        pictures_in(tmp_path)
    with pytest.raises(BadInput, match=rf"^plate\.0\.{ending} is no picture ") as refusal:
        read_image(tmp_path / f"plate.0.{ending}", 32, 32)
    assert str(tmp_path) not in str(refusal.value)


# --- folders


@pytest.mark.parametrize("names", [("video.mp4", "report.json"), ("latents.safetensors",)])
def test_folder_of_a_finished_video_is_refused(tmp_path, names):
    """Or of what is left of it. Catches: the picture of its route taken for a clip."""
    for name in names:
        (tmp_path / name).write_text("")
    Image.new("RGB", (8, 8)).save(tmp_path / "route.png")
    with pytest.raises(BadInput, match="folder of a finished video"):
        pictures_in(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "video.mp4", "report.json"])
def test_folder_of_no_whole_video_is_read(tmp_path, name):
    """With one of our files alone, it may be anybody's."""
    (tmp_path / name).write_text("")
    Image.new("RGB", (8, 8)).save(tmp_path / "route.png")
    assert pictures_in(tmp_path) == [tmp_path / "route.png"]


def test_folder_is_read_in_the_order_of_numbers(tmp_path):
    """As file managers sort, without what is hidden. Catches: 1, 10, 11, 2; a file of macOS taken for a picture."""
    names = [f"shot2_{number}.png" for number in range(1, 13)] + ["shot10_1.png", "shot10_002.PNG"]
    for number, name in enumerate(names):
        Image.new("L", (SIDE, SIDE), 10 * number).save(tmp_path / name)
    for name in ("._shot2_1.png", ".hidden.png"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7Mac OS X        ")
    (tmp_path / "shot2_3.old.png").mkdir()
    (tmp_path / "notes.txt").write_text("no picture")
    read = read_footage(tmp_path, SIDE, SIDE)
    assert (read.pixels[:, 0, 0, 0] / 10).tolist() == list(range(len(names)))
    assert count_frames(tmp_path) == len(names)


# --- pictures that move

SHOWN_MS = (60, 60, 120, 20, 20, 300, 100)
"""Frame 4 is over before a moment comes."""
MOMENTS = [0, 1, 2, 2, 3, 5, 5, 5, 5, 5, 6]
"""Which of them is the newest at 0, 1/16, 2/16 ... s: they begin at 0, 60, 120, 240, 260, 280 and 580 ms."""


def moving(path: Path, *, durations: tuple[int, ...] = SHOWN_MS, more: dict | None = None) -> Path:
    """Frame n is grey of 10 n. `more`: of the PNG, such as a picture before the animation, which has no time."""
    count = len(durations) + len(more or {})
    frames = [Image.new("RGB", (SIDE, SIDE), (10 * number,) * 3) for number in range(count)]
    usual = {".webp": {"lossless": True}, ".avif": {"quality": 100}}.get(path.suffix, {})
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, **usual, **(more or {}))
    return path


def numbers(path: Path) -> list[int]:
    read = read_footage(path, SIDE, SIDE)
    assert count_frames(path) == read.frames
    return (read.pixels[:, 0, 0, 0].double() / 10).round().int().tolist()


@pytest.mark.parametrize("name", ["a.webp", "a.png", "a.apng", "a.gif", "a.avif"])
def test_animation_frames_are_shown_for_their_time(name, tmp_path):
    """Catches: one still of it; frames taken by their index; a note on alpha that it has not."""
    if name == "a.avif" and ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow reads no AVIF")
    path = moving(tmp_path / name)
    assert numbers(path) == MOMENTS
    assert read_footage(path, 32, 64).note == (
        f"{name}: 7 pictures, taken as 11 frames at 16 a second, cropped to 32x64."
    )
    note = f"{name}: the first of its 7 pictures, cropped to 32x64."
    pixels, notes = read_image(path, 32, 64)
    assert (notes, pixels.shape, pixels.unique().tolist()) == ((note,), (1, 1, 3, 64, 32), [0])


def test_still_before_an_animation_is_left_out(tmp_path):
    """For programs that show a still PNG."""
    path = moving(tmp_path / "a.png", more={"default_image": True})
    assert numbers(path) == [1 + number for number in MOMENTS]


@pytest.mark.parametrize("milliseconds", [0, 10])
def test_frames_too_short_last_a_tenth_second(milliseconds, tmp_path):
    """As in browsers. Catches: an animation of no length, or one in fast motion, of the shortest time of a GIF."""
    assert numbers(moving(tmp_path / "a.gif", durations=(milliseconds,) * 3)) == [0, 0, 1, 1, 2]


def test_pages_and_animations_keep_every_picture(tmp_path):
    """Pages have no times: 16 a second, as files."""
    moving(tmp_path / "1.tif", durations=(0, 0, 0))
    moving(tmp_path / "2.webp", durations=(125, 125))
    Image.new("L", (SIDE, SIDE), 90).save(tmp_path / "3.png")
    assert numbers(tmp_path) == [0, 1, 2, 0, 0, 1, 1, 9]


def test_second_picture_of_a_camera_is_ignored(tmp_path):
    """Phones put a second one into a JPEG. Catches: the flicker of a film of both."""
    frames = [Image.new("RGB", (SIDE, SIDE), (100 * number,) * 3) for number in (1, 2)]
    frames[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert numbers(tmp_path / "a.jpg") == [10]


# --- alpha


USED_KEYS = {"L": 0, "P": 0, "RGB": (0, 0, 0)}
UNUSED_KEYS = {"L": 7, "P": bytes([255] * 256), "RGB": (0, 0, 7)}
"""Values that mean transparent, by mode; no pixel has one of the second."""


@pytest.mark.parametrize("hole", [True, False])
@pytest.mark.parametrize("kind", ["LA.png", "RGBA.webp", "RGBA.gif", "L.png", "P.png", "RGB.png", "moving.webp"])
def test_only_dropped_alpha_is_noted(kind, hole, tmp_path):
    """By the pixels. Catches: a GIF without a hole that is noted; a hole in a palette or a key that is not."""
    path = tmp_path / kind
    mode = kind.partition(".")[0]
    picture = EIGHT_BITS.convert("RGBA")
    alpha = HOLE if hole else OPAQUE
    picture.putalpha(Image.eval(alpha, lambda level: 255 if level == 255 else 0))
    if mode == "LA":
        Image.merge("LA", (EIGHT_BITS, alpha)).save(path)
    elif mode in ("L", "P", "RGB"):
        ramp = EIGHT_BITS.point(lambda level: 8 if level == 7 else level)
        ramp.convert(mode).save(path, transparency=(USED_KEYS if hole else UNUSED_KEYS)[mode])
    elif mode == "moving":
        EIGHT_BITS.convert("RGBA").save(path, save_all=True, append_images=[picture], duration=62, lossless=True)
    else:
        picture.save(path, lossless=True)
    assert (", without alpha," in read_footage(path, SIDE, SIDE).note) == hole
    assert (", without alpha," in read_image(path, SIDE, SIDE)[1][0]) == (hole and mode != "moving")


# --- what is too much


READERS = (read_image, read_footage, lambda path, *_: count_frames(path))


@pytest.mark.parametrize("read", READERS)
def test_oversized_picture_is_refused_before_decoding(read, tmp_path, monkeypatch):
    """Catches: a small file that takes hours or gigabytes."""
    monkeypatch.setattr(Image.Image, "convert", None)
    Image.new("1", (8000, 6000)).save(tmp_path / "wide.tif")
    with pytest.raises(BadInput, match="8000 x 6000 pixels"):
        read(tmp_path / "wide.tif", 32, 32)


@pytest.mark.parametrize("read", READERS)
def test_picture_of_too_many_frames_is_refused_first(read, tmp_path, monkeypatch):
    """Before any is decoded. Catches: a number of frames in the header, for which memory is taken."""
    monkeypatch.setattr(Image.Image, "convert", None)
    png(tmp_path / "frames.png", 0, 1, animated=10**7)
    with pytest.raises(BadInput, match=r"^frames\.png has 10000001 pictures"):
        read(tmp_path / "frames.png", 32, 32)


def test_animation_is_refused_once_too_long(tmp_path):
    """Catches: an hour of it decoded, or kept, first."""
    moving(tmp_path / "long.gif", durations=(60_000, 60_000, 60_000, 60_000))
    for read in (count_frames, lambda path: read_footage(path, 32, 32)):
        with pytest.raises(BadInput, match=r"long\.gif has 2880 frames"):
            read(tmp_path / "long.gif")
