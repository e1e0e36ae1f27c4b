"""Square pictures of shared workflows for ComfyUI's list of templates: a title, what it shows, and a route."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import av
from PIL import Image, ImageColor, ImageDraw, ImageFont

SIDE, MARGIN, HEAD, FOOT = 640, 28, 96, 118
GROUND, WORDS, FAINT = "#16181d", "#ffffff", "#b8bec8"
QUALITY = 78


def frame_of(video: bytes, number: int) -> Image.Image:
    """Return one pixel frame of an mp4, counted from 0."""
    with av.open(io.BytesIO(video)) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i == number:
                return frame.to_image()
    raise ValueError(f"frame {number} was asked for, but the video ends before it; ask for an earlier one")


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return pictures of one size in a row."""
    width, height = pictures[0].size
    row = Image.new("RGB", (len(pictures) * width, height))
    for i, picture in enumerate(pictures):
        row.paste(picture, (i * width, 0))
    return row


def thumbnail(picture: Image.Image, title: str, route: Sequence[str], caption: str) -> Image.Image:
    """Return the square. `route`: a colour per block; `caption`: what the route is, below it."""
    square = Image.new("RGB", (SIDE, SIDE), GROUND)
    draw = ImageDraw.Draw(square)
    draw.text((MARGIN, HEAD / 2), title, fill=WORDS, font=ImageFont.load_default(40), anchor="lm")
    _paste(square, picture)
    _draw_route(draw, route)
    draw.text((MARGIN, SIDE - 24), caption, fill=FAINT, font=ImageFont.load_default(24), anchor="lm")
    return square


def write(square: Image.Image, path: Path) -> None:
    """Save it as the JPEG that lies beside a workflow."""
    square.save(path, quality=QUALITY, optimize=True)


def _paste(square: Image.Image, picture: Image.Image) -> None:
    room = SIDE - 2 * MARGIN, SIDE - HEAD - FOOT
    scale = min(room[0] / picture.width, room[1] / picture.height)
    size = round(picture.width * scale), round(picture.height * scale)
    fitted = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    square.paste(fitted, ((SIDE - size[0]) // 2, HEAD + (room[1] - size[1]) // 2))


def _draw_route(draw: ImageDraw.ImageDraw, route: Sequence[str]) -> None:
    gap = 8
    width = (SIDE - 2 * MARGIN - gap * (len(route) - 1)) / max(len(route), 1)
    top = SIDE - FOOT + 16
    for i, colour in enumerate(route):
        left = MARGIN + i * (width + gap)
        draw.rounded_rectangle((left, top, left + width, top + 48), 6, fill=colour)
        words = GROUND if ImageColor.getcolor(colour, "L") > 150 else WORDS
        at = left + width / 2, top + 24
        draw.text(at, str(i + 1), fill=words, font=ImageFont.load_default(24), anchor="mm")
