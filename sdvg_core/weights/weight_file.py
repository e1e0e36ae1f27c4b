"""Open a weight file without running code from it and without reading all of it.

This file knows containers (safetensors, shards with an index, PyTorch pickles) but no models. Tensors are read on
access; safetensors and zipped pickles stay memory-mapped, so that a 28 GB file needs no 28 GB of memory.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import BadInput, first_line, unreadable
from ..files.small_files import MEGABYTE, parse_json, read_small
from ..weights import LARGEST_SIZE
from .names import Rename
from .pickles import NO_CHOICE, Choice, choose, read_pickle, short_name

SAFETENSORS = (".safetensors", ".sft")
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
GGUF = ".gguf"
INDEXES = (".safetensors.index.json", ".bin.index.json")
# safetensors itself reads no longer one. Metadata can be long: a workflow with pictures, the tags of a data set.
LONGEST_HEADER = 100 * MEGABYTE
# Outside its texts: of 20,000 tensors. The 14B target has 0.05 MB; 50 would take 7 s and 2 GB.
LONGEST_BARE_HEADER = MEGABYTE
LONGEST_METADATA = MEGABYTE
LONGEST_TENSOR_NAME = 500
SUMS = 1024
JSON_TEXT = re.compile(rb'"[^"]*"')
AS_PUBLISHED = "use the file as its authors published it"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and dtype of a tensor, from the header."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class WeightFile(Mapping[str, Tensor]):
    """The named tensors of a checkpoint, read on access.

    `layout`: the container, for reports. `info`: by our names. `read`: a tensor by its name in the file. `names`:
    our name -> name in the file. `metadata`: of safetensors. `state_dict`: the chosen one of a pickle;
    `state_dicts`: all.
    """

    path: Path
    layout: str
    info: Mapping[str, TensorInfo]
    read: Callable[[str], Tensor]
    names: Mapping[str, str]
    metadata: Mapping[str, str] = field(default_factory=dict)
    state_dict: str = ""
    state_dicts: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Tensor:
        return self.read(self.names[name])

    def __contains__(self, name: object) -> bool:
        return name in self.names  # the inherited method would read the tensor to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def renamed(self, rename: Rename) -> WeightFile:
        """Return the tensors under new names, without those left out. Raises `BadInput` for two of one name."""
        names: dict[str, str] = {}
        info: dict[str, TensorInfo] = {}
        for old, source in self.names.items():
            new = rename(old)
            if not new:
                continue
            if new in names:
                raise BadInput(f"two tensors in {self.path.name} mean {new}; {AS_PUBLISHED}")
            names[new] = source
            info[new] = self.info[old]
        return replace(self, info=info, names=names)


def open_weights(path: str | Path, choice: Choice = NO_CHOICE) -> WeightFile:
    """Open a checkpoint: `.safetensors`, a PyTorch pickle, an index of shards, or a folder with one of these.

    `choice`: which state dict of a training checkpoint. Raises `BadInput` if the file is missing, truncated, not a
    checkpoint, a pickle that needs code, or without the chosen state dict.
    """
    path = Path(path)
    if os.path.isdir(path):  # noqa: PTH112 - the methods of Path raise for a name that is too long
        path = _file_in_folder(path)
    if not os.path.isfile(path):  # noqa: PTH113
        raise BadInput(f"no weight file at {path}; check the path")
    check_download(path)
    if path.suffix.lower() in PICKLES:
        return _open_pickle(path, choice)
    if path.suffix.lower() == GGUF:
        fault = f"{path.name} is GGUF, which only ComfyUI reads, with ComfyUI-GGUF's loader"
        raise BadInput(f"{fault}; take the bf16 file, or what `python -m sdvg_core convert` makes of it")
    index = path.name.lower().endswith(INDEXES)
    if not index and path.suffix.lower() not in SAFETENSORS:
        raise BadInput(f"{path.name} is no weight file; give .safetensors, its index, or {', '.join(PICKLES)}")
    file = _open_shards(path) if index else _open_safetensors(path)
    choose(path.name, (), choice)
    return file


def _file_in_folder(folder: Path) -> Path:
    kinds = (INDEXES[0], ".safetensors", INDEXES[1], ".bin")
    files = next((files for kind in kinds if (files := sorted(folder.glob(f"*{kind}")))), [])
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:4]) or "none"
        raise BadInput(f"{folder} has {names}, not one weight file or index of shards; name a file")
    return files[0]


def _open_safetensors(path: Path) -> WeightFile:
    header = _read_header(path)
    try:
        handle: Any = safe_open(str(path), framework="pt", device="cpu")
        names = handle.keys()
        # Shapes come from here, as those of all tensors take safetensors 0.4 quadratic time.
        content = parse_json(header)
    except (SafetensorError, OSError, ValueError, OverflowError, RuntimeError) as error:
        raise unreadable("safetensors", path.name, error) from error
    if not names:
        raise BadInput(f"{path.name} holds no tensors; give another file")
    _check_names(path, names)
    info = {name: _tensor_info(name, content[name]["dtype"], content[name]["shape"]) for name in names}
    # A longer value is no setting and would stay in memory; as empty text it is refused if one is read from it.
    metadata = {
        name: value if len(value) <= LONGEST_METADATA else ""
        for name, value in (content.get("__metadata__") or {}).items()
    }
    return WeightFile(path, "safetensors", info, handle.get_tensor, {n: n for n in info}, metadata)


def _read_header(path: Path) -> bytes:
    """Return a header, which may be cut short. Raises `BadInput` for one that would take long to parse."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(min(length, LONGEST_HEADER))
    except OSError as error:
        raise unreadable("safetensors", path.name, error) from error
    if length > LONGEST_HEADER:
        raise BadInput(f"{path.name} states a header of {length:,} bytes, over {LONGEST_HEADER:,}; fetch it again")
    if length > LONGEST_BARE_HEADER:
        plain = header.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Summed and not replaced: millions of texts would be as many pieces, and take 2 GB.
        bare = len(plain) - sum(text.end() - text.start() for text in JSON_TEXT.finditer(plain))
        if bare > LONGEST_BARE_HEADER:
            fault = f"the header of {path.name} has {bare:,} bytes between its texts, over {LONGEST_BARE_HEADER:,}"
            raise BadInput(f"{fault}; save the file without its metadata, or give another")
    return header


def _check_names(path: Path, names: Iterable[str]) -> None:
    """Raise `BadInput` for a name that is no text or takes long to take apart at its dots."""
    odd = next((name for name in names if len(name) > LONGEST_TENSOR_NAME or not name.isprintable()), None)
    if odd is not None:
        raise BadInput(f"{path.name} has a tensor name of {len(odd)} characters, {odd[:60]!r}; {AS_PUBLISHED}")


def _tensor_info(name: str, code: str, shape: Sequence[int]) -> TensorInfo:
    if code not in _DTYPES:
        raise BadInput(f"{name} is stored as {code}, which is not read here; use a bf16, fp16 or fp8 version")
    if 0 in shape and max(shape) > LARGEST_SIZE:  # no bytes say whether it can be
        raise BadInput(f"{name} has the impossible shape {tuple(shape)}; {AS_PUBLISHED}")
    return TensorInfo(tuple(shape), _DTYPES[code])


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
    files = {}
    for shard in sorted(set(weight_map.values())):
        path = index.parent / shard
        if not os.path.isfile(path):  # noqa: PTH113
            raise BadInput(f"{index.name} names {shard}, which is missing; fetch it too")
        check_download(path)
        files[shard] = _open_safetensors(path) if path.suffix in SAFETENSORS else _open_pickle(path, NO_CHOICE)
    lost = [name for name, shard in weight_map.items() if name not in files[shard]]
    if lost:
        raise BadInput(f"{weight_map[lost[0]]} lacks {lost[0]}, which {index.name} lists; fetch the shards again")
    return WeightFile(
        index,
        f"{next(iter(files.values())).layout} in {len(files)} shards",
        {name: files[shard].info[name] for name, shard in weight_map.items()},
        lambda name: files[weight_map[name]][name],
        {name: name for name in weight_map},
    )


def _read_weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> shard name. Raises `BadInput` unless shards are of the index's kind and next to it."""
    try:
        content = parse_json(read_small(index))
        weight_map = {str(name): str(shard) for name, shard in content["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{index.name} has no weight_map ({first_line(error)}); fetch it again") from error
    safe = index.name.lower().endswith(INDEXES[0])
    suffixes = SAFETENSORS if safe else PICKLES
    strange = [shard for shard in weight_map.values() if not _is_name_of_shard(shard, suffixes)]
    if strange:
        kind = "safetensors" if safe else "pickle"
        raise BadInput(f"{index.name} names {strange[0][:100]!r}, no {kind} shard next to it; {AS_PUBLISHED}")
    if not weight_map:
        raise BadInput(f"{index.name} lists no tensors; fetch it again")
    _check_names(index, weight_map)
    return weight_map


def _is_name_of_shard(shard: str, suffixes: Collection[str]) -> bool:
    """True for a plain file name on every system (on Windows, a colon means another drive or stream)."""
    plain = PurePosixPath(shard).name == shard == PureWindowsPath(shard).name
    return plain and ":" not in shard and shard.isprintable() and Path(shard).suffix in suffixes


def _open_pickle(path: Path, choice: Choice) -> WeightFile:
    tensors, taken, state_dicts = read_pickle(path, choice)
    state_dict = short_name(taken)
    _check_names(path, tensors)
    return WeightFile(
        path,
        f"PyTorch pickle, {state_dict}" if state_dict else "PyTorch pickle",
        {name: TensorInfo(tuple(t.shape), t.dtype) for name, t in tensors.items()},
        tensors.__getitem__,
        {name: name for name in tensors},
        state_dict=state_dict,
        state_dicts=tuple(map(short_name, state_dicts)),
    )


def layer_numbers(names: Iterable[str], listed: str) -> list[int]:
    """Return the sorted indices of the layers in the module list `listed`, up to 99."""
    prefix = listed + "."
    parts = {name[len(prefix) :].partition(".")[0] for name in names if name.startswith(prefix)}
    return sorted({int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 3})


def count_layers(names: Iterable[str], listed: str) -> int:
    """Return the last index in a module list plus 1, so that a gap shows as missing weights."""
    return max(layer_numbers(names, listed), default=-1) + 1


def shape_of(file: WeightFile, name: str, dims: int, what: str, advice: str) -> tuple[int, ...]:
    """Return the shape of a weight. Raises `BadInput` unless it exists and has `dims` axes of plausible sizes.

    `what`: the expected model; `advice`: the remedy, both for errors.
    """
    if name not in file.info:
        raise BadInput(f"{file.path.name} is not a whole {what}, as it lacks {name}; {advice}")
    shape = file.info[name].shape
    if len(shape) != dims or not all(0 < size <= LARGEST_SIZE for size in shape):
        raise BadInput(f"{file.path.name} is no {what}, as {name} has the shape {shape}; {advice}")
    return shape


def check_complete(
    file: WeightFile,
    wanted: Mapping[str, Tensor | tuple[int, ...]],
    what: str,
    advice: str,
    *,
    extra: Collection[str] | None = (),
) -> None:
    """Raise `BadInput` unless a file has exactly the wanted tensors, as floating-point numbers of their shapes.

    `extra`: names of further tensors that it may have; None for any. `what`, `advice`: as in `shape_of`.
    """
    info = file.info
    shapes = {name: tuple(getattr(tensor, "shape", tensor)) for name, tensor in wanted.items()}
    allowed = info if extra is None else {*shapes, *extra}
    troubles = {
        "lacks": [name for name in shapes if name not in info],
        "has the unknown": [name for name in info if name not in allowed],
        "has whole numbers, which is another quantisation, in": [
            name for name in shapes if name in info and not info[name].dtype.is_floating_point
        ],
        "has another shape for": [
            f"{n} ({info[n].shape}, not {s})" for n, s in shapes.items() if n in info and info[n].shape != s
        ],
    }
    for trouble, names in troubles.items():
        if names:
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise BadInput(f"{file.path.name} is not a whole {what}, as it {trouble} {listed}; {advice}")


def check_finite_weights(model: nn.Module, file: str) -> None:
    """Raise `BadInput` if a weight has NaN or infinity.

    Some would go unnoticed: attention on a CPU treats NaN queries or keys as masked and returns zeros.
    """
    bad = first_not_finite(model.state_dict())
    if bad:
        raise BadInput(f"{bad} in {file} holds NaN or infinity; fetch the file again")


def first_not_finite(weights: Mapping[str, Tensor], *, fp8: bool = False) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None. `fp8`: whether fp8 ones are read too."""
    for name in weights:
        tensor = weights[name]
        if tensor.element_size() == 1 and tensor.is_floating_point():
            if not fp8:
                continue
            tensor = tensor.half()  # torch cannot test fp8; NaN and infinity survive the cast
        if not bool(torch.isfinite(tensor).all()):
            return name
    return None


def stored_tensors(weight: Tensor) -> tuple[Tensor, ...]:
    """Return what a weight is kept as: itself, or the numbers and scales of one of torchao's."""
    if not is_traceable_wrapper_subclass(weight):
        return (weight,)
    return tuple(getattr(weight, part) for part in weight.__tensor_flatten__()[0])


def weight_digest(model: nn.Module) -> str:
    """Return a hash of all weights of a loaded model, on any device.

    It hashes `SUMS` interleaved sums over the bits of each tensor: one pass over memory, where a cryptographic hash
    of 28 GB would take half a minute. It detects any change except one that another cancels.
    """
    digest = hashlib.sha256()
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        for tensor in stored_tensors(weight):
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            words = flat.view(torch.int32) if flat.numel() % 4 == 0 and flat.storage_offset() % 4 == 0 else flat
            whole = words.numel() // SUMS * SUMS
            for part in (words[:whole].view(-1, SUMS).sum(0, dtype=torch.int64), words[whole:]):
                digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()


# --- failed downloads

# No checkpoint begins like that: safetensors begin with the header's length, pickles with the protocol.
INSTEAD = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<(!doctype\s+html|html\b|\?xml\b)"
    rb'|\{\s*"(error|errors|message|detail)"\s*:|version https://git-lfs)',
    re.IGNORECASE,
)


def check_download(path: Path) -> None:
    """Raise `BadInput` if a file is a web page, an error message or a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            beginning = file.read(4096)
    except OSError as error:
        raise unreadable("checkpoint", path.name, error) from error
    if INSTEAD.match(beginning):
        fault = f"{path.name} is no checkpoint, but a web page, a server's error or a pointer of Git LFS"
        raise BadInput(f"{fault}; download the file itself, logged in if needed")
