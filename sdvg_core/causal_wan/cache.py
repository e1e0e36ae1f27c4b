"""The K/V cache of self-attention, in slots of one latent frame each.

The slots to write are an argument, not a pointer inside the cache. So each denoising step of a block overwrites the
step before, and a rejected block needs no rollback. Only a rolling window overwrites frames that an earlier history
still has. For a drafter that makes several blocks for one of the target's, its context copies those slots first and
puts them back when such a history is continued (`copy`, `restore`); otherwise the history is passed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

STORED = torch.float8_e4m3fn
SCALE_DTYPE = torch.bfloat16
LARGEST_FP8 = torch.finfo(STORED).max


@dataclass(frozen=True, slots=True)
class CacheSlots:
    """The cache slots of one forward pass. `position`: rotary position of its first frame.

    `written`: slots of its own frames. `visible`: slots that it attends to, its own included; n stands for the
    first n. `positions`: rotary position of each visible slot, for keys stored unrotated; else empty.
    """

    position: int
    written: tuple[int, ...]
    visible: int | tuple[int, ...]
    positions: tuple[int, ...] = ()


SlotCopy = tuple[tuple[Tensor, slice, Tensor], ...]
"""A backup of slots: buffer, tokens and values."""


class KVCache:
    """A buffer of keys and one of values per layer, `b l n d`, allocated once for `frames` slots."""

    def __init__(self, tree: Any, frames: int, frame_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (1, frames * frame_tokens, tree.num_heads, tree.dim // tree.num_heads)
        self._frame_tokens = frame_tokens
        self._layers = tuple(
            (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
            for _ in tree.blocks
        )

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Write the keys and values of consecutive frames, `b l n d`, into their slots."""
        self._put(self._layers[layer], slots, (k, v))

    def _put(self, buffers: Sequence[Tensor], slots: Sequence[int], values: Sequence[Tensor]) -> None:
        for first, stop, offset in contiguous_runs(slots):
            tokens = slice(first * self._frame_tokens, stop * self._frame_tokens)
            source = slice(offset * self._frame_tokens, (offset + stop - first) * self._frame_tokens)
            for buffer, new in zip(buffers, values, strict=True):
                buffer[:, tokens].copy_(new[:, source])

    def blend(self, slots: tuple[int, ...], into: int, share: float) -> None:
        """Move the running mean in slot `into`, the same for all tokens, by `share` towards the mean of `slots`."""
        for layer in range(len(self._layers)):
            new = (x.float().mean(dim=1, keepdim=True) for x in self.read(layer, slots))
            old = self.read(layer, (into,))
            k, v = ((a + share * (b - a)).to(a.dtype) for a, b in zip(old, new, strict=True))
            self.write(layer, (into,), k, v)

    def copy(self, slots: Sequence[int]) -> SlotCopy:
        """Return a copy of `slots`, for `restore`."""
        places = [slice(slot * self._frame_tokens, (slot + 1) * self._frame_tokens) for slot in slots]
        return tuple((buffer, tokens, buffer[:, tokens].clone()) for buffer in self._buffers() for tokens in places)

    def restore(self, copied: SlotCopy) -> None:
        """Write back what `copy` returned."""
        for buffer, tokens, values in copied:
            buffer[:, tokens].copy_(values)

    def _buffers(self) -> Iterator[Tensor]:
        return (buffer for layer in self._layers for buffer in layer)

    def read(self, layer: int, visible: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the keys and values in the `visible` slots, as views if the slots are adjacent."""
        k, v = self._layers[layer]
        return self._visible(k, visible), self._visible(v, visible)

    def _visible(self, buffer: Tensor, visible: int | tuple[int, ...]) -> Tensor:
        if isinstance(visible, int):
            return buffer[:, : visible * self._frame_tokens]
        parts = [buffer[:, a * self._frame_tokens : b * self._frame_tokens] for a, b, _ in contiguous_runs(visible)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def contiguous_runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first, stop, offset in `numbers`) for each run of consecutive numbers."""
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[begin], numbers[i - 1] + 1, begin
            begin = i


class Fp8KVCache(KVCache):
    """A K/V cache in float8_e4m3fn (3-bit mantissa), with a bfloat16 scale for each token and head.

    The block being generated is rounded too, so that it sees itself as later blocks will.
    """

    def __init__(self, tree: Any, frames: int, frame_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(tree, frames, frame_tokens, STORED, device)
        self._dtype = dtype
        self._scales = tuple(
            (torch.empty_like(k[..., :1], dtype=SCALE_DTYPE), torch.empty_like(v[..., :1], dtype=SCALE_DTYPE))
            for k, v in self._layers
        )

    def write(self, layer: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """Round the keys and values of consecutive frames, `b l n d`, and write them into their slots."""
        k, k_scale = to_fp8(k)
        v, v_scale = to_fp8(v)
        self._put((*self._layers[layer], *self._scales[layer]), slots, (k, v, k_scale, v_scale))

    def read(self, layer: int, visible: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the keys and values in the `visible` slots, in the activations' dtype."""
        k, v = super().read(layer, visible)
        k_scale, v_scale = (self._visible(scale, visible) for scale in self._scales[layer])
        return k.to(self._dtype).mul_(k_scale), v.to(self._dtype).mul_(v_scale)

    def _buffers(self) -> Iterator[Tensor]:
        yield from super()._buffers()
        yield from (buffer for layer in self._scales for buffer in layer)


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round `b l n d` to fp8; return it with its scale `b l n 1`.

    A value that is not finite makes its whole row non-finite. The largest value of a row becomes the largest fp8
    number, also where the rounded scale makes the quotient slightly larger.
    """
    scale = (
        (x.abs().amax(dim=-1, keepdim=True).float() / LARGEST_FP8)
        .clamp_min(torch.finfo(SCALE_DTYPE).tiny)
        .to(SCALE_DTYPE)
    )
    return (x.float() / scale.float()).to(STORED), scale
