"""A picture from a file as a pixel frame."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from .errors import BadInput


def read_image(path: Path, width: int, height: int) -> Tensor:
    """Read a picture, cropped in the middle and resized to fill `width` x `height`: `1 1 3 h w` in [0, 1].

    Raises `BadInput` if the file is missing, no picture, or absurdly large.
    """
    try:
        with warnings.catch_warnings():
            # Pillow only warns of a picture that unpacks to gigabytes; here that is refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                upright = ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadInput(
            f"expected a picture to start from, but {path.name} cannot be read ({error}); give a PNG or JPEG"
        ) from error
    fitted = ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.asarray(fitted, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1)[None, None].contiguous()
