"""A sheet to draw on, in pixels of the finished picture; it is drawn larger and scaled down for smooth edges."""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image, ImageDraw

from .lettering import fitted, text_mask

INK, FAINT, WHITE = "#222222", "#666666", "#FFFFFF"
SCALE = 3
# In pixels of the large drawing.
BOLD, HALO = 1, 5


class Canvas:
    """A white sheet; (0, 0) is the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._large = Image.new("RGB", (SCALE * width, SCALE * height), WHITE)
        self._pen = ImageDraw.Draw(self._large)

    def finished(self) -> Image.Image:
        """Return the picture, RGB."""
        return self._large.resize((self.width, self.height), Image.Resampling.LANCZOS)

    def box(self, left: float, top: float, right: float, bottom: float, colour: str) -> None:
        """Fill a rectangle."""
        x0, y0, x1, y1 = (round(SCALE * edge) for edge in (left, top, right, bottom))
        self._large.paste(colour, (x0, y0, x1, y1))

    def dot(self, x: float, y: float, radius: float, colour: str, edge: float = 0.0) -> None:
        """Fill a circle, with a rim of ink `edge` pixels wide."""
        if edge:
            self._disc(x, y, radius + edge / 2, INK)
        self._disc(x, y, radius - edge / 2, colour)

    def _disc(self, x: float, y: float, radius: float, colour: str) -> None:
        self._pen.ellipse([SCALE * at for at in (x - radius, y - radius, x + radius, y + radius)], fill=colour)

    def cross(self, x: float, y: float, arm: float) -> None:
        """Draw an X of ink."""
        for slope in (-arm, arm):
            ends = [SCALE * at for at in (x - arm, y - slope, x + arm, y + slope)]
            self._pen.line(ends, fill=INK, width=round(1.4 * SCALE))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        colour: str = INK,
        *,
        align: float = 0.5,
        room: float | None = None,
        bold: bool = False,
        halo: bool = False,
        turned: bool = False,
    ) -> None:
        """Write a line of text with its middle at height `y`.

        `align`: the share of the line that lies left of `x`. `room`: the width to cut it to. `halo`: white around
        the letters. `turned`: upwards, around the point.
        """
        if room is not None:
            text = fitted(text, SCALE * size, SCALE * room)
        letters = (colour, BOLD if bold else 0)
        for ink, stroke in [(WHITE, HALO), letters] if halo else [letters]:
            mask = text_mask(text, SCALE * size, stroke)
            if turned:
                mask = mask.transpose(Image.Transpose.ROTATE_90)
            corner = (round(SCALE * x - align * mask.width), round(SCALE * y - mask.height / 2))
            self._large.paste(ink, corner, mask)


def dashes(start: float, end: float, dash: float, gap: float) -> Iterator[tuple[float, float]]:
    """Yield the ends of the dashes of a line from `start` to `end`."""
    while start < end:
        yield start, min(start + dash, end)
        start += dash + gap


def tint(colour: str, strength: float) -> str:
    """Return a colour mixed with white; `strength`: the colour's share."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + strength * (part - 255)):02X}" for part in parts)
