"""Write a safetensors file one tensor at a time, and go on where a stopped program left it.

safetensors' own writer takes all tensors at once, which for a large model are more than the memory. Here the
header, which says where each tensor lies, is written first. What is not finished is hidden next to the file; its
length says how far it is.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ..files.unfinished import unfinished_file
from .weight_file import TensorInfo

CODES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.uint8: "U8",
}
Group = Mapping[str, TensorInfo]
"""Tensors that are written together."""


def safetensors_header(groups: Sequence[Group], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a safetensors file that holds tensors in this order."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    start = 0
    for group in groups:
        for name, info in group.items():
            end = start + bytes_of(info)
            header[name] = {"dtype": CODES[info.dtype], "shape": info.shape, "data_offsets": [start, end]}
            start = end
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # so that the tensors are aligned
    return len(text).to_bytes(8, "little") + text


def bytes_of(info: TensorInfo) -> int:
    """Return the bytes of a tensor."""
    return math.prod(info.shape) * info.dtype.itemsize


def group_bytes(group: Group) -> int:
    """Return the bytes of tensors that are written together."""
    return sum(map(bytes_of, group.values()))


class GrowingFile:
    """A file in the making; `done`: the number of groups that it has."""

    def __init__(self, file: BinaryIO, header: bytes, groups: Sequence[Group]) -> None:
        self._file = file
        self._groups = groups
        self._starts = [*accumulate((group_bytes(group) for group in groups), initial=len(header))]
        file.seek(0)
        if file.read(len(header)) != header:
            file.seek(0)
            file.truncate()
            file.write(header)
        size = file.seek(0, os.SEEK_END)
        self.done = bisect_right(self._starts, size) - 1
        file.truncate(self._starts[self.done])

    def read(self, number: int) -> dict[str, Tensor]:
        """Return the tensors of a group that is done."""
        self._file.seek(self._starts[number])
        tensors = {}
        for name, info in self._groups[number].items():
            content = bytearray(self._file.read(bytes_of(info)))
            tensors[name] = torch.frombuffer(content, dtype=info.dtype).view(info.shape)
        return tensors

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Append the next group."""
        group = self._groups[self.done]
        self._file.seek(self._starts[self.done])
        for name, info in group.items():
            tensor = tensors[name]
            assert (tuple(tensor.shape), tensor.dtype) == (info.shape, info.dtype), name
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._file.write(flat.numpy().data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done += 1


@contextmanager
def growing_file(path: Path, groups: Sequence[Group], metadata: Mapping[str, str]) -> Iterator[GrowingFile]:
    """Yield a file to add groups of tensors to; at the end of the `with` block it appears as `path`.

    An exception leaves the hidden part, and the next call with the same groups and metadata goes on. Raises
    `BadInput` as `unfinished_file` does.
    """
    header = safetensors_header(groups, metadata)
    size = len(header) + sum(map(group_bytes, groups))
    with unfinished_file(path, path.with_name(f".{path.name}.unfinished"), size) as file:
        yield GrowingFile(file, header, groups)
