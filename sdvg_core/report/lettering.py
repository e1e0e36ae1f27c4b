"""Text as masks to draw through, in the font that comes with Pillow."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right

from PIL import Image, ImageDraw, ImageFont, features

# Curly quotes, dashes and the minus sign become their keyboard versions.
PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"---")
# A sign that the bitmap font has; the scalable font draws its box for unknown letters.
UNKNOWN = "¤"
# Height of a capital letter per pixel of font size.
CAPITAL_HEIGHT = 0.72
BITMAP_HEIGHT = 11


def text_mask(text: str, size: int, stroke: int = 0) -> Image.Image:
    """Return `text` in white on black, mode `L`; the middle of a capital letter is always halfway up.

    `stroke`: pixels to thicken every line by, on each side.
    """
    font = _font(size)
    width = math.ceil(font.getlength(text)) + 2 * stroke
    if not isinstance(font, ImageFont.FreeTypeFont):
        mask = Image.new("L", (width, BITMAP_HEIGHT))
        ImageDraw.Draw(mask).text((0, 0), text, 255, font)
        return mask.resize((width * size // BITMAP_HEIGHT, size))
    mask = Image.new("L", (width, 2 * size + 2 * stroke))
    foot = mask.height / 2 + CAPITAL_HEIGHT / 2 * size
    ImageDraw.Draw(mask).text((stroke, foot), text, 255, font, anchor="ls", stroke_width=stroke)
    return mask


def fitted(text: str, size: int, room: float) -> str:
    """Return `text` on one line in letters the font can draw, cut to `room` pixels."""
    line = drawable(" ".join(text.split()))
    if text_width(line, size) <= room:
        return line
    fitting = bisect_right(range(len(line)), room, key=lambda letters: text_width(line[:letters] + "...", size))
    return line[: max(fitting - 1, 0)] + "..."


def text_width(line: str, size: int) -> float:
    """Return how many pixels wide a line is."""
    font = _font(size)
    return font.getlength(line) * (1 if isinstance(font, ImageFont.FreeTypeFont) else size / BITMAP_HEIGHT)


def drawable(text: str) -> str:
    """Return `text` without accents, and with a box for each letter that Pillow's font lacks."""
    return "".join(map(_drawable, text.translate(PLAIN)))


def _drawable(letter: str) -> str:
    parts = unicodedata.normalize("NFKD", letter)
    plain = "".join(part for part in parts if not unicodedata.combining(part))
    return plain if plain.isascii() else UNKNOWN


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size) if features.check("freetype2") else ImageFont.load_default()
