"""Read the pictures of a file or a folder, cropped to the size of the video to make."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ..errors import BadInput, first_line, why
from .small_files import LATENTS, REPORT, VIDEO, check_regular

logging.getLogger("PIL").addHandler(logging.NullHandler())  # hide its messages on damaged files

# Pillow's other formats are left out: one runs an interpreter, and many are barely maintained.
PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
PICTURE_NAMES = "PNG, JPEG, WebP, BMP, GIF, TIFF or AVIF"
START = 16
"""Bytes by which Pillow knows a format."""
MOST_PIXELS = 40_000_000
MOST_IN_ALL = 10_000_000_000
"""Pixels of all frames of an animation: a small file could take hours to decode."""
NO_PICTURE = (" as a picture", "use a PNG or JPEG")
SHORTEST_DURATION = Fraction(10, 1000)
USUAL_DURATION = Fraction(1, 10)
"""Seconds. Like browsers, show a frame with a duration of `SHORTEST_DURATION` or less for `USUAL_DURATION`."""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One of `count` pictures of a file, not yet decoded. `seconds`: its duration, None if not stated."""

    path: Path
    image: Image.Image
    count: int
    seconds: Fraction | None

    def fitted(self, width: int, height: int) -> tuple[Tensor, bool]:
        """Return the picture upright, cropped and scaled, as bytes `3 h w`; and whether alpha was lost.

        Raises `BadInput` if it is damaged, or has 32 bits a channel.
        """
        with reading(self.path, *NO_PICTURE), _silence():
            upright = ImageOps.exif_transpose(self.image)
            alpha = upright.has_transparency_data
            if upright.mode.startswith("I;16") or (upright.mode == "I" and self.image.format == "PNG"):
                upright = Image.fromarray((np.asarray(upright) / 257).round().astype(np.uint8))
            elif upright.mode in ("I", "F"):
                raise BadInput(f"{self.path.name} has 32 bits a channel; give 8 or 16")
            elif alpha:
                upright = upright.convert("RGBA")
                alpha = upright.getchannel("A").getextrema() != (255, 255)
            return cropped(upright.convert("RGB"), (width, height)), alpha

    def alpha(self, size: tuple[int, int]) -> Tensor:
        """Return the alpha of the upright picture, cropped and scaled, as bytes `1 h w`. Raises `BadInput`."""
        with reading(self.path, *NO_PICTURE), _silence():
            upright = ImageOps.exif_transpose(self.image)
            if upright.has_transparency_data:
                return cropped(upright.convert("RGBA").getchannel("A"), size)
            return cropped(Image.new("L", upright.size, 255), size)


def cropped(picture: Image.Image, size: tuple[int, int]) -> Tensor:
    """Return the pixels of a picture in bytes, `c h w`, cropped at the centre and scaled to width and height.

    `c`: 3 for RGB, 1 for grey.
    """
    fitted = np.array(ImageOps.fit(picture, size, Image.Resampling.LANCZOS))
    return torch.from_numpy(fitted).view(*fitted.shape[:2], -1).permute(2, 0, 1).contiguous()


def read_image(path: Path, width: int, height: int) -> tuple[Tensor, tuple[str, ...]]:
    """Read the first picture of a file, cropped to a size: `1 1 3 h w` in [0, 1]; and notes on that.

    Raises `BadInput` if the file is missing, not a picture, or too large.
    """
    with closing(pictures_of(path)) as pictures:
        picture = next(pictures)
        pixels, alpha = picture.fitted(width, height)
    taken = f"the first of its {picture.count} pictures" if picture.count > 1 else "a picture"
    return (pixels.float() / 255)[None, None], (picture_note(path.name, taken, alpha, width, height),)


def picture_note(name: str, taken: str, alpha: bool, width: int, height: int) -> str:
    """Return a note on the pictures of a file or folder. `alpha`: whether alpha was lost."""
    return f"{name}: {taken}{', without alpha' if alpha else ''}, cropped to {width}x{height}."


def pictures_of(path: Path) -> Generator[Picture, None, None]:
    """Yield the picture of a file, or those of an animation; each must be used before the next.

    Raises `BadInput` if it is missing, not a picture, or has too many pixels.
    """
    with reading(path, *NO_PICTURE):
        check_regular(path)
        try:
            with _silence():
                image = Image.open(path, formats=_formats())
        except UnidentifiedImageError as error:
            raise BadInput(f"{path.name} is no picture that is read; give one in {PICTURE_NAMES}") from error
        with image:
            check_picture_size(*image.size, path)
            with _silence():
                # An MPO is a JPEG with a second picture: a depth map or the other eye.
                count = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            if count * image.width * image.height > MOST_IN_ALL:
                size = f"{count} pictures of {image.width} x {image.height} pixels"
                raise BadInput(f"{path.name} has {size}; give at most {MOST_IN_ALL // 10**9} billion in all")
            first = int(count > 1 and bool(image.info.get("default_image")))
            for number in range(first, count):
                with _silence():
                    image.seek(number)
                    check_picture_size(*image.size, path)
                    seconds = _seconds(image) if count > 1 else None
                yield Picture(path, image, count - first, seconds)


@contextmanager
def _silence() -> Iterator[None]:
    """Hide Pillow's warnings; what matters of them is refused. Never keep it open over a `yield`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _seconds(image: Image.Image) -> Fraction | None:
    """Return the duration of an animation's picture; None for a page of a TIFF."""
    if image.format == "TIFF":
        return None
    image.load()  # only then is the time known
    stated = Fraction(image.info.get("duration", 0)) / 1000
    return stated if stated > SHORTEST_DURATION else USUAL_DURATION


def check_picture_size(width: int, height: int, path: Path) -> None:
    """Raise `BadInput` for a picture that is too large."""
    if not 0 < width * height <= MOST_PIXELS:
        most = f"{MOST_PIXELS // 1_000_000} million"
        raise BadInput(f"{path.name} has {width} x {height} pixels; give at most {most}")


def pictures_in(path: Path) -> list[Path] | None:
    """Return the pictures of a folder in numeric order, or `path` if it is a picture; None for other files.

    Raises `BadInput` for a folder without pictures, and for that of a finished video, whose picture is its route.
    """
    with reading(path):
        if not path.is_dir():
            return [path] if is_picture(path) else None
        if (path / LATENTS).is_file() or ((path / REPORT).is_file() and (path / VIDEO).is_file()):
            fault = f"{path.name} is the folder of a finished video, not of pictures"
            raise BadInput(f"{fault}; give the {VIDEO} in it, or to continue it its {LATENTS}")
        files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        # A file that is called a picture but does not begin like one is damaged: refused later, not left out.
        pictures = [file for file in files if is_picture(file) or _is_called_picture(file)]
        if not pictures:
            content = f"only files such as {min(files).name}" if files else "no files"
            raise BadInput(f"the folder {path.name} has {content}; give a video, or pictures ({PICTURE_NAMES})")
        padded = {file: re.sub(r"\d+", lambda digits: digits[0].zfill(255), file.name) for file in pictures}
        return sorted(pictures, key=lambda file: (padded[file], file))


def is_picture(path: Path) -> bool:
    """True if a file begins like a picture of `PICTURE_FORMATS`, whatever its ending. Raises `OSError`.

    The raw files of cameras begin like TIFF, so a TIFF needs the ending of a picture, or none.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(START)
    kinds = [name for name in _formats() if (begins := Image.OPEN[name][1]) and begins(start)]
    return bool(kinds) and (kinds != ["TIFF"] or not path.suffix or _is_called_picture(path))


def _is_called_picture(path: Path) -> bool:
    """True if a file has an ending that Pillow knows for one of `PICTURE_FORMATS`."""
    return Image.registered_extensions().get(path.suffix.lower()) in PICTURE_FORMATS


def _formats() -> list[str]:
    """Return those of `PICTURE_FORMATS` that this Pillow reads."""
    Image.init()
    return [name for name in PICTURE_FORMATS if name in Image.OPEN]


@contextmanager
def reading(path: Path, what: str = "", cure: str = "give an mp4, webm or mov") -> Iterator[None]:
    """Turn any error of a damaged file into `BadInput`. `what`, `cure`: end of the fault, and the remedy."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError as error:
        raise BadInput(f"there is no file {path}; check the path") from error
    except Exception as error:  # a damaged file can fail in any way
        raise BadInput(f"{path.name} cannot be read{what} ({first_line(why(error))}); {cure}") from error
