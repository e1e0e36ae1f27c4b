"""Keys and values kept in 8 bits: half the bytes of bfloat16, read back in the activations' dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .cache import KVCache

STORED, SCALE = torch.float8_e4m3fn, torch.bfloat16
LARGEST = torch.finfo(STORED).max


class Fp8KVCache(KVCache):
    """A K/V cache in float8_e4m3fn, with a bfloat16 scale for each token and head.

    Values are rounded to a 3-bit mantissa. The block being generated is rounded like the rest, so it sees of itself
    what later blocks see of it.
    """

    def __init__(self, tree: Any, frames: int, frame_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(tree, frames, frame_tokens, STORED, device)
        self._dtype = dtype
        self._scales = tuple(
            (torch.empty_like(k[..., :1], dtype=SCALE), torch.empty_like(v[..., :1], dtype=SCALE))
            for k, v in self._layers
        )

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Round the keys and values of consecutive frames, `b l n d`, and write them into their slots."""
        (k, k_scale), (v, v_scale) = to_fp8(k), to_fp8(v)
        self._put((*self._layers[layer], *self._scales[layer]), slots, (k, v, k_scale, v_scale))

    def read(self, layer: int, visible: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values in slots 0 to `visible` (exclusive), in the activations' dtype."""
        k, v = super().read(layer, visible)
        k_scale, v_scale = (scale[:, : k.shape[1]] for scale in self._scales[layer])
        return k.to(self._dtype).mul_(k_scale), v.to(self._dtype).mul_(v_scale)

    def _buffers(self) -> Iterator[Tensor]:
        yield from super()._buffers()
        yield from (buffer for layer in self._scales for buffer in layer)


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `b l n d` rounded to fp8, and the scale `b l n 1` that undoes it.

    A value that is not finite makes its whole row non-finite. The largest value of a row becomes the largest fp8
    number, or slightly more, as the scale is rounded too; that is rounded down again.
    """
    scale = (x.abs().amax(dim=-1, keepdim=True).float() / LARGEST).clamp_min(torch.finfo(SCALE).tiny).to(SCALE)
    return (x.float() / scale.float()).to(STORED), scale
