"""The size of a clip in pixels, and whether a clip to continue has that size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import BadInput


def check_size(width: int, height: int, step: int) -> None:
    """Raise `BadInput` unless both are multiples of `step` pixels: the latent stride times the model's patch."""
    for name, size in (("width", width), ("height", height)):
        if size < step or size % step:
            near = sorted({max(size // step, 1) * step, (max(size, 0) // step + 1) * step})
            raise BadInput(f"{name} must be a multiple of {step}, but is {size}; use {' or '.join(map(str, near))}")


def check_given_shape(shape: Sequence[int], channels: int, rows: int, columns: int) -> None:
    """Raise `BadInput` unless latents of this shape are one clip with these channels, rows and columns."""
    wanted = (channels, rows, columns)
    if len(shape) != 5 or shape[0] != 1 or shape[2] < 1 or (shape[1], *shape[3:]) != wanted:
        raise BadInput(
            f"a clip to continue must be one video's latents, 1 x {channels} x frames x {rows} x {columns}, "
            f"but these are {' x '.join(map(str, shape))}; use the size the clip was made in"
        )


def check_given(latents: Tensor, channels: int, rows: int, columns: int) -> None:
    """Raise `BadInput` unless `latents` are one clip of this size with finite numbers."""
    check_given_shape(latents.shape, channels, rows, columns)
    if not bool(torch.isfinite(latents).all()):
        raise BadInput(
            "a clip to continue must be finite, but some of its latents are NaN or infinity; make it again"
        )
