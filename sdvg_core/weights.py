"""Open a file of weights without running it and without reading it whole.

Knows containers (safetensors, shards with an index, PyTorch pickles); knows nothing of models. Tensors are read
one by one, on access; safetensors and zipped pickles stay memory-mapped. Pickles are opened with
`weights_only=True` and nothing else.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import BadInput

SAFETENSORS = (".safetensors", ".sft")
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
# A training checkpoint holds the same model several times; the averaged one is the one to sample from.
INNER_DICTS = ("generator_ema", "generator", "state_dict", "model", "module")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What can be known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class WeightFile(Mapping[str, Tensor]):
    """Named tensors of one checkpoint, read on access.

    `info`: shape and dtype of every tensor. `metadata`: the safetensors metadata. `layout`: the container, in
    words. `read`: gives a tensor by its name in the file; `names`: our name -> name in the file.
    """

    path: Path
    layout: str
    info: Mapping[str, TensorInfo]
    read: Callable[[str], Tensor]
    names: Mapping[str, str]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(self.names[name])

    def __contains__(self, name: object) -> bool:
        return name in self.names  # what Mapping inherits would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def renamed(self, rename: Callable[[str], str | None]) -> WeightFile:
        """Return the same tensors under new names; those renamed to None are left out.

        Raises `BadInput` if two tensors would get one name.
        """
        names: dict[str, str] = {}
        info: dict[str, TensorInfo] = {}
        for old, source in self.names.items():
            new = rename(old)
            if new is None:
                continue
            if new in names:
                raise BadInput(
                    f"expected every tensor of {self.path.name} once, but two of them mean {new}; "
                    "use the file as its authors published it"
                )
            names[new], info[new] = source, self.info[old]
        return WeightFile(self.path, self.layout, info, self.read, names, self.metadata)


def open_weights(path: str | Path) -> WeightFile:
    """Open a checkpoint: `.safetensors`, an index of shards or the folder with it, or a PyTorch pickle.

    Raises `BadInput` if the file is missing, cut short, not a checkpoint, or a pickle that wants to run code.
    """
    path = Path(path)
    if path.is_dir():
        path = _file_in_folder(path)
    if not path.is_file():
        raise BadInput(f"expected a file of weights, but there is nothing at {path}; check the path")
    if path.name.endswith(".safetensors.index.json"):
        return _open_shards(path)
    if path.suffix in SAFETENSORS:
        return _open_safetensors(path)
    if path.suffix in PICKLES:
        return _open_pickle(path)
    raise BadInput(
        f"expected weights as .safetensors, .safetensors.index.json or one of {', '.join(PICKLES)}, "
        f"but {path.name} is none of them; give the checkpoint itself"
    )


def _file_in_folder(folder: Path) -> Path:
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    files = indexes or sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        found = ", ".join(f.name for f in files[:4]) or "none"
        raise BadInput(
            f"expected one index of shards or one .safetensors file in {folder}, but found {found}; name the file"
        )
    return files[0]


def _open_safetensors(path: Path) -> WeightFile:
    try:
        handle: Any = safe_open(str(path), framework="pt", device="cpu")
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, OverflowError, RuntimeError) as error:
        raise BadInput(_unreadable("safetensors", path, error)) from error
    if not slices:
        raise BadInput(f"expected named tensors in {path.name}, but it holds none; give a checkpoint")
    info = {name: _safetensors_info(name, part) for name, part in slices.items()}
    return WeightFile(
        path, "safetensors", info, handle.get_tensor, {n: n for n in info}, dict(handle.metadata() or {})
    )


def _safetensors_info(name: str, part: Any) -> TensorInfo:
    code = part.get_dtype()
    if code not in _DTYPES:
        raise BadInput(
            f"expected tensors of a dtype that is known here, but {name} is stored as {code}; "
            "use the bf16, fp16 or fp8 version of the file"
        )
    return TensorInfo(tuple(part.get_shape()), _DTYPES[code])


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def _open_shards(index: Path) -> WeightFile:
    weight_map = _read_weight_map(index)
    files = {shard: _open_shard(index, shard) for shard in sorted(set(weight_map.values()))}
    lost = [name for name, shard in weight_map.items() if name not in files[shard]]
    if lost:
        raise BadInput(
            f"expected every tensor that {index.name} lists, but {lost[0]} is not in {weight_map[lost[0]]}; "
            "fetch the shards again"
        )
    return WeightFile(
        index,
        f"safetensors in {len(files)} shards",
        {name: files[shard].info[name] for name, shard in weight_map.items()},
        lambda name: files[weight_map[name]][name],
        {name: name for name in weight_map},
    )


def _read_weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> shard name. Shards lie beside the index and are never an index themselves."""
    try:
        weight_map = {str(k): str(v) for k, v in json.loads(index.read_bytes())["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"expected an index with a weight_map, but {index.name} holds none ({_first_line(error)}); "
            "fetch it again"
        ) from error
    strange = [s for s in weight_map.values() if "/" in s or "\\" in s or Path(s).suffix not in SAFETENSORS]
    if strange:
        raise BadInput(
            f"expected safetensors shards beside {index.name}, but it names {strange[0]!r}; "
            "use the index as published"
        )
    if not weight_map:
        raise BadInput(f"expected tensors in {index.name}, but it lists none; fetch it again")
    return weight_map


def _open_shard(index: Path, shard: str) -> WeightFile:
    path = index.parent / shard
    if not path.is_file():
        raise BadInput(f"expected every shard that {index.name} names, but {shard} is missing; fetch it too")
    return _open_safetensors(path)


def _open_pickle(path: Path) -> WeightFile:
    try:
        # Only the zipped format can be memory-mapped; the old one is read into memory.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise BadInput(_refused_pickle(path, str(error))) from error
    except Exception as error:  # a damaged pickle is a damaged program: it can fail in any way
        raise BadInput(_unreadable("PyTorch", path, error)) from error
    inner, tensors = _find_tensors(path, content)
    info = {name: TensorInfo(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    layout = f"PyTorch pickle, {inner}" if inner else "PyTorch pickle"
    return WeightFile(path, layout, info, tensors.__getitem__, {name: name for name in tensors})


def _refused_pickle(path: Path, message: str) -> str:
    wanted = re.search(r"GLOBAL ([\w.]+)", message)
    # torch puts a page of general advice before the reason.
    reason = _first_line(message.rpartition("WeightsUnpickler error:")[2])
    what = f"it wants to run {wanted.group(1)}" if wanted else f"it does not read as one ({reason})"
    return f"expected a pickle of tensors alone, but {path.name} was refused: {what}; use a .safetensors copy"


def _unreadable(container: str, path: Path, error: Exception) -> str:
    # A private mapping counts as memory where the system does not promise more of it than there is.
    short = "unable to mmap" in str(error)
    cure = "use a smaller version of the file, or add swap" if short else "fetch it again"
    return f"expected a whole {container} file, but {path.name} cannot be read ({_first_line(error)}); {cure}"


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _find_tensors(path: Path, content: object) -> tuple[str, dict[str, Tensor]]:
    """Return the name of the inner dict that holds the model ('' for the top level) and its tensors."""
    if isinstance(content, Mapping):
        dicts = {str(k): _only_tensors(path, v) for k, v in content.items() if isinstance(v, Mapping)}
        dicts = {k: v for k, v in dicts.items() if v}
        # Before the top level: a training checkpoint may keep its step or its loss as a tensor there.
        for name in INNER_DICTS:
            if name in dicts:
                return name, dicts[name]
        tensors = _only_tensors(path, content)
        if tensors:
            return "", tensors
        if len(dicts) == 1:
            return next(iter(dicts.items()))
        if dicts:
            raise BadInput(
                f"expected one model in {path.name}, but it holds {', '.join(sorted(dicts)[:6])}; "
                f"save the one to use under one of {', '.join(INNER_DICTS)}"
            )
    raise BadInput(f"expected named tensors in {path.name}, but found {type(content).__name__}; give a checkpoint")


def _only_tensors(path: Path, content: Mapping[Any, Any]) -> dict[str, Tensor]:
    tensors = {k: v.detach() for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
    for name, tensor in tensors.items():
        if not _is_whole(tensor):
            raise BadInput(
                f"expected plain tensors with their values in {path.name}, but {name} has none of its own; "
                "use a .safetensors copy"
            )
    return tensors


def _is_whole(tensor: Tensor) -> bool:
    """Whether the values are there: a pickle can also hold sparse, shape-only and endlessly repeated tensors."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def check_complete(file: WeightFile, wanted: Mapping[str, Tensor], what: str, advice: str) -> None:
    """Raise `BadInput` unless the file holds every wanted tensor, in the wanted shape, and nothing else.

    `what`: the model the file should be, in words; `advice`: where a right one is to be had.
    """
    troubles = {
        "lacks": [name for name in wanted if name not in file],
        "has the unknown": [name for name in file if name not in wanted],
        "has another shape for": [
            name for name in wanted if name in file and file.info[name].shape != tuple(wanted[name].shape)
        ],
    }
    for trouble, names in troubles.items():
        if names:
            some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise BadInput(f"expected the {what} whole, but {file.path.name} {trouble} {some}; {advice}")
