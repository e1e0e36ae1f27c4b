"""Offload layers to main memory, and prefetch each to the device while the one before it runs.

diffusers' `apply_group_offloading` does this only for all layers of a model or none, and needs accelerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 512
"""Bytes; torch aligns tensors so, and the choice of kernels depends on it."""


class LayerStream:
    """Prefetches the weights of layers that are called in order, by hooks on the layers.

    Two layers fit on the device. On a GPU, weights are in pinned memory and a stream copies those of the next
    layer; elsewhere they are copied when the layer is called. `bytes`: copied in every pass.
    """

    def __init__(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        self._device = device
        self._gpu = device.type == "cuda"
        self._layers = [_LayerWeights(layer, pinned=self._gpu) for layer in layers]
        self.bytes = sum(layer.home.nbytes for layer in self._layers)
        largest = max(layer.home.nbytes for layer in self._layers)
        self._rooms = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in layers[:2]]
        self._on_device = [layer.tensors_in(self._room(number)) for number, layer in enumerate(self._layers)]
        self._prefetched = 0
        if self._gpu:
            self._stream = torch.cuda.Stream(device)
            self._arrived = [torch.cuda.Event() for _ in range(2)]
            self._left = [torch.cuda.Event() for _ in range(2)]
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._enter, number))
            layer.register_forward_hook(partial(self._leave, number), always_call=True)

    def _room(self, number: int) -> Tensor:
        return self._rooms[number % 2][: self._layers[number].home.nbytes]

    def _enter(self, number: int, *_: object) -> None:
        if number == 0 or self._prefetched != number:
            self._copy(number)
        self._layers[number].show(self._on_device[number])
        if self._gpu:
            torch.cuda.current_stream(self._device).wait_event(self._arrived[number % 2])
            self._prefetched = number + 1
            if self._prefetched < len(self._layers):
                self._copy(self._prefetched)

    def _copy(self, number: int) -> None:
        if not self._gpu:
            self._room(number).copy_(self._layers[number].home)
            return
        with torch.cuda.stream(self._stream):
            # Wait until the layer that uses this buffer is done.
            self._stream.wait_event(self._left[number % 2])
            self._room(number).copy_(self._layers[number].home, non_blocking=True)
            self._arrived[number % 2].record(self._stream)

    def _leave(self, number: int, *_: object) -> None:
        self._layers[number].show(self._layers[number].kept)
        if self._gpu:
            self._left[number % 2].record(torch.cuda.current_stream(self._device))


class _LayerWeights:
    """The tensors of a layer, packed in main memory. `home`: the bytes; `kept`: views of them as tensors."""

    def __init__(self, layer: nn.Module, *, pinned: bool) -> None:
        tables: list[dict[str, Any]] = [
            table for module in layer.modules() for table in (module._parameters, module._buffers)
        ]
        self._slots = [(table, name) for table in tables for name, tensor in table.items() if tensor is not None]
        self._like = [table[name] for table, name in self._slots]
        sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in self._like]
        self._starts = [0, *accumulate(sizes)]
        self.home = torch.empty(self._starts[-1], dtype=torch.uint8, pin_memory=pinned)
        self.kept = self.tensors_in(self.home)
        for tensor, copy in zip(self._like, self.kept, strict=True):
            copy.copy_(tensor)
        self.show(self.kept)
        self._like = self.kept  # frees the original tensors

    def tensors_in(self, room: Tensor) -> list[Tensor]:
        """Return views of the tensors in the buffer `room`."""
        tensors = []
        for start, like in zip(self._starts, self._like, strict=False):
            tensor = room[start : start + like.nbytes].view(like.dtype).view(like.shape)
            is_parameter = isinstance(like, nn.Parameter)
            tensors.append(nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)
        return tensors

    def show(self, tensors: Sequence[Tensor]) -> None:
        """Set the layer's tensors."""
        for (table, name), tensor in zip(self._slots, tensors, strict=True):
            table[name] = tensor
