"""Read a picture, or find the pictures of a folder, cropped to the size of the video to make."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import BadInput, first_line
from .small_files import check_regular

# Pillow knows dozens more formats. One of them runs an interpreter, and others are barely maintained.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MOST_PIXELS, LONGEST_SIDE = 40_000_000, 100


def read_image(path: Path, width: int, height: int) -> Tensor:
    """Read a picture, cropped in the middle and resized to fill `width` x `height`: `1 1 3 h w` in [0, 1].

    Raises `BadInput` if the file is missing, not a picture, or absurdly large.
    """
    with reading(path, " as a picture", "use a PNG or JPEG"), warnings.catch_warnings():
        check_regular(path)
        # Pillow only warns about a picture that unpacks to gigabytes; we refuse it.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=FORMATS) as picture:
            check_picture_size(*picture.size, path)
            ImageOps.exif_transpose(picture, in_place=True)
            upright = picture.convert("RGB") if picture.mode != "RGB" else picture
            fitted = ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1)[None, None].contiguous()


def check_picture_size(width: int, height: int, path: Path) -> None:
    """Raise `BadInput` for a picture that is absurdly large or narrow."""
    if not 0 < width * height <= MOST_PIXELS or max(width, height) > LONGEST_SIDE * min(width, height):
        most = f"{MOST_PIXELS // 1_000_000} million, no side over {LONGEST_SIDE} times the other"
        raise BadInput(f"{path.name} has {width} x {height} pixels; give at most {most}")


def pictures_in(path: Path) -> list[Path] | None:
    """Return the pictures of a folder, or the one that `path` is; None if it is another kind of file."""
    found = sorted(one for one in (path.iterdir() if path.is_dir() else [path]) if one.suffix.lower() in SUFFIXES)
    return found if found or path.is_dir() else None


@contextmanager
def reading(path: Path, what: str = "", cure: str = "give an mp4, webm or mov") -> Iterator[None]:
    """Raise `BadInput` in place of whatever a damaged file raises."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise BadInput(f"{path.name} cannot be read{what} ({first_line(error)}); {cure}") from error
