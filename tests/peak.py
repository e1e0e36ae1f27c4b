"""Bytes that tensors take for a while, counted."""

from typing import Any

from torch import is_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """The most bytes alive at once among the tensors made while it is on."""

    def __init__(self, there_before: Any) -> None:
        super().__init__()
        self.before = {t.untyped_storage()._cdata for t in there_before if is_tensor(t)}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if is_tensor(t) and t.untyped_storage()._cdata not in self.before:
                storage = t.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: (ref, n) for key, (ref, n) in self.alive.items() if not ref.expired()}
        self.bytes = max(self.bytes, sum(n for _, n in self.alive.values()))
        return out
