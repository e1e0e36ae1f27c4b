"""Bytes that are alive at once, counted while tensors are made: of memory, of a stand-in for a card, or of none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors_of(part: Any) -> Iterator[Tensor]:
    """Yield the tensors that a part holds: a module, a tuple, a list, or an object in its attributes."""
    if torch.is_tensor(part):
        yield part
    elif isinstance(part, nn.Module):
        yield from part.parameters()
        yield from part.buffers()
    elif isinstance(part, tuple | list):
        for inner in part:
            yield from tensors_of(inner)
    else:
        for inner in getattr(part, "__dict__", {}).values():
            yield from tensors_of(inner)


class Peak(TorchDispatchMode):
    """The most bytes alive at once among the tensors made while it is on; `device`: on that one alone."""

    def __init__(self, there_before: Iterable[Any] = (), device: torch.device | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._before = {t.untyped_storage()._cdata for t in there_before if torch.is_tensor(t)}
        self._device = device
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_most = 0  # what is alive, with what is gone since it was last looked at
        self.bytes = 0

    def count(self, tensor: Any) -> None:
        if not torch.is_tensor(tensor) or (self._device and tensor.device != self._device):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._before:
            _, counted = self._alive.get(storage._cdata, (None, 0))
            self._at_most += storage.nbytes() - counted
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def now(self) -> int:
        self._alive = {key: held for key, held in self._alive.items() if not held[0].expired()}
        self._at_most = sum(size for _, size in self._alive.values())
        return self._at_most

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            self.count(tensor)
        if self._at_most > self.bytes:
            self.bytes = max(self.bytes, self.now())
        return out
