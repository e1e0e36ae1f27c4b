"""Read tensors from a PyTorch pickle: check its program first, then load it with `weights_only=True`."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, first_line, unreadable
from .dictionaries import INNER_DICTS, Choice, choose
from .pickle_program import check_program


@dataclass(frozen=True, slots=True, eq=False)
class Pickled:
    """The model in a pickle. `dictionary`: the one it was taken from, '' for the top level.

    `dictionaries`: all that hold tensors.
    """

    dictionary: str
    dictionaries: tuple[str, ...]
    tensors: Mapping[str, Tensor]


def read_pickle(path: Path, choice: Choice) -> Pickled:
    """Return the model in a pickle. `choice`: of those in a training checkpoint.

    With the zipped format its tensors stay memory-mapped. Raises `BadInput` if the file is damaged, wants more than
    tensors, holds no named tensors, or not those that were chosen.
    """
    try:
        check_program(path)
        # Only the zipped format can be memory-mapped; the old one is read into memory.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except BadInput:
        raise
    except pickle.UnpicklingError as error:
        raise BadInput(_refused_pickle(path, str(error))) from error
    except Exception as error:  # a damaged pickle is a damaged program: it can fail in any way
        raise unreadable("PyTorch", path.name, error) from error
    found = _find_model(path, content, choice)
    _check_inside(path, found.tensors.values())
    return found


def _refused_pickle(path: Path, message: str) -> str:
    wanted = re.search(r"GLOBAL ([\w.]+)", message)
    # torch puts a page of general advice before the reason.
    reason = first_line(message.rpartition("WeightsUnpickler error:")[2])
    what = f"it wants to run {wanted.group(1)}" if wanted else f"it cannot be read as one ({reason})"
    return f"a pickle may hold tensors alone, but {path.name} was refused: {what}; use a .safetensors copy"


def _find_model(path: Path, content: object, choice: Choice) -> Pickled:
    if isinstance(content, Mapping):
        inner = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Mapping)}
        dicts = {k: tensors for k, v in inner.items() if (tensors := _only_tensors(path, v))}
        there = tuple(dicts)
        # Before the top level: a training checkpoint may keep its step or its loss as a tensor there.
        name = choose(path.name, there, choice)
        if name:
            return Pickled(name, there, dicts[name])
        tensors = _only_tensors(path, content)
        if tensors:
            return Pickled("", there, tensors)
        if len(dicts) == 1:
            return Pickled(there[0], there, dicts[there[0]])
        if dicts:
            raise BadInput(
                f"there must be one model in {path.name}, but it holds {', '.join(sorted(dicts)[:6])}; "
                f"save the one to use under one of {', '.join(INNER_DICTS)}"
            )
    raise BadInput(
        f"a checkpoint holds named tensors, but {path.name} holds {type(content).__name__}; give another file"
    )


def _only_tensors(path: Path, content: Mapping[Any, Any]) -> dict[str, Tensor]:
    tensors = {k: v.detach() for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
    for name, tensor in tensors.items():
        if not _is_whole(tensor):
            raise BadInput(
                f"tensors in {path.name} must come with their values, but {name} has none of its own; "
                "use a .safetensors copy"
            )
    return tensors


def _is_whole(tensor: Tensor) -> bool:
    """Whether all values exist: a pickle can also hold sparse, shape-only and endlessly repeated tensors."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _check_inside(path: Path, tensors: Iterable[Tensor]) -> None:
    """Refuse tensors larger than the file: a pickle can also make up storages of any size."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    if sum(storages.values()) > path.stat().st_size:
        raise BadInput(
            f"{path.name} must hold the values of all its tensors, but they would take {sum(storages.values()):,} "
            "bytes, more than the file has; use a .safetensors copy"
        )
