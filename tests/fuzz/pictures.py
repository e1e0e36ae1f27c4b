"""Pictures in many formats, damaged."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from random import Random

from PIL import Image

from .files import Files, changed_bytes

READ = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
OTHERS = ("PPM", "TGA", "ICO", "PCX", "SGI", "EPS", "PDF", "JPEG2000")
MODES = ("RGB", "RGBA", "L", "P", "CMYK", "I;16", "1", "LA")
# A picture of this format is a program, which a library may hand to an interpreter.
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(ran) (w) file closefile\nshowpage\n"


@cache
def seeds(formats: tuple[str, ...]) -> tuple[bytes, ...]:
    pictures = [POSTSCRIPT, png(2, 2), png(60_000, 60_000), png(9000, 9000), png(6000, 6000), png(2**31 - 1, 1)]
    for kind in formats:
        for mode in MODES:
            file = io.BytesIO()
            try:
                Image.new(mode, (9, 7)).save(file, format=kind, exif=_exif() if kind in ("PNG", "JPEG") else b"")
            except (OSError, ValueError, KeyError):
                continue  # not every format takes every mode
            pictures.append(file.getvalue())
        if kind in ("PNG", "WEBP", "GIF", "TIFF", "AVIF"):
            file = io.BytesIO()
            frames = [Image.new("RGB", (9, 7), (grey, 0, 0)) for grey in (0, 99, 200)]
            frames[0].save(file, format=kind, save_all=True, append_images=frames[1:], duration=(40, 0, 900))
            pictures.append(file.getvalue())
    return tuple(pictures)


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: lies on its side
    return exif.tobytes()


def png(width: int, height: int) -> bytes:
    rows = zlib.compress(b"\0" + bytes(6) + b"\0" + bytes(6))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def gif(width: int, height: int, count: int) -> bytes:
    """Return an animation of `count` pictures, each of which draws one pixel."""
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(6)
    frame = b"\x21\xf9\x04\x08\x01\0\0\0" + b"\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02\x4c\x01\0"
    return head + frame * count + b";"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(random: Random) -> Files:
    data = random.choice(seeds(READ if random.random() < 0.85 else OTHERS))
    return {"picture.png": changed_bytes(random, data) if random.random() < 0.9 else data}
