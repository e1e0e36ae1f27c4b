"""Read a state dict from a PyTorch pickle with torch's restricted reader, `weights_only=True`, which runs no code.

A reader of our own for the pickle's opcodes would have to keep in step with torch's (SECURITY.md).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, first_line, printable, unreadable
from ..settings.context import Weights
from ..settings.execution import AUTO

# --- the state dict of a training checkpoint: the averaged weights (EMA) or the raw ones. Authors differ in which
# they sample from: Self-Forcing's README and demo use EMA, Causal-Forcing's README runs its chunk-wise file
# without. So neither can be the rule for all files.

STATE_DICTS: Mapping[str, str] = {"ema": "generator_ema", "raw": "generator"}
"""Choice -> name of the state dict in published training checkpoints."""
INNER_DICTS = (*STATE_DICTS.values(), "state_dict", "model", "module", "generator_lora")
"""Names of state dicts that hold a model, by priority if nothing is chosen."""
MOST_KEYS_NAMED = 6
LONGEST_CLASS_NAME = 40


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a state dict. `weights`: ema or raw are required; auto takes `likely`, or else EMA first.

    `likely`: as stated by the checkpoint's preset.
    """

    weights: Weights = AUTO
    likely: Weights = AUTO


NO_CHOICE = Choice()


def choose(file: str, names: Collection[str], choice: Choice) -> str:
    """Return the state dict to take among `names`; empty if none has a known name.

    `file`: its name, for errors. Raises `BadInput` if the chosen one is missing.
    """
    if choice.weights == AUTO:
        likely = [STATE_DICTS[choice.likely]] if choice.likely != AUTO else []
        return next((name for name in (*likely, *INNER_DICTS) if name in names), "")
    wanted = STATE_DICTS[choice.weights]
    if wanted in names:
        return wanted
    listed = ", ".join(short_name(name) for name in sorted(names)[:MOST_KEYS_NAMED])
    other = next((word for word, name in STATE_DICTS.items() if name in names), AUTO)
    raise BadInput(f"{file} has no {wanted}, but {listed or 'one set of weights without a name'}; choose {other}")


def short_name(name: str) -> str:
    """Return a state dict's name as short printable text."""
    return " ".join(printable(name[:LONGEST_CLASS_NAME]).split())


def choice_note(file: str, taken: str, names: Collection[str], choice: Choice) -> str | None:
    """Return a note on an automatic choice, or None if there was nothing to choose."""
    if choice.weights != AUTO or taken not in STATE_DICTS.values():
        return None
    stated = STATE_DICTS.get(choice.likely)
    if stated is None and all(name in names for name in STATE_DICTS.values()):
        both = " and ".join(STATE_DICTS.values())
        return (
            f"{file} holds two sets of weights, {both}, and nothing states which one is meant: {taken} was taken. "
            "State ema or raw to choose."
        )
    if stated is not None and taken != stated:
        return f"The preset is for {choice.likely} weights, but {file} holds no {stated}: {taken} was taken."
    return None


# --- reading

OLDEST_TORCH = "2.6"
"""Earlier versions of the restricted reader can be made to run code (CVE-2025-32434)."""
SAFE_COPY = "use a .safetensors copy"


def read_pickle(path: Path, choice: Choice) -> tuple[dict[str, Tensor], str, tuple[str, ...]]:
    """Return a model's tensors, the name of their state dict (empty without one), and the names of all state dicts.

    `choice`: which state dict of a training checkpoint. Tensors of the zipped format stay memory-mapped. Raises
    `BadInput` if the file is damaged, needs code, holds no named tensors, or lacks the chosen state dict.
    """
    if torch.__version__ < OLDEST_TORCH:
        raise BadInput(f"torch {torch.__version__} cannot read a pickle safely; update it, or {SAFE_COPY}")
    on_disk = path.stat().st_size
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            with zipfile.ZipFile(path) as archive:
                packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
            if packed:  # memory-mapped, it would be read as values
                raise BadInput(f"parts of {path.name} are compressed, as PyTorch never does; {SAFE_COPY}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except BadInput:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        if type(error).__name__ == "UnpicklingError" or "weights_only" in str(error):
            wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
            # torch prints a page of advice before the reason.
            reason = first_line(str(error).rpartition("WeightsUnpickler error:")[2])
            fault = f"wants to run {wanted.group(1)}" if wanted else f"is no pickle of tensors ({reason})"
            raise BadInput(f"{path.name} {fault}; {SAFE_COPY}") from error
        raise unreadable("PyTorch", path.name, error) from error
    tensors, name, state_dicts = _find_model(path, content, choice)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors.values()}
    needed = sum(storage.nbytes() for storage in storages.values())
    if needed > on_disk:  # a pickle can create storages of any size
        size = f"{needed:,} bytes, more than the file has"
        raise BadInput(f"the tensors in {path.name} would take {size}; {SAFE_COPY}")
    return tensors, name, state_dicts


def _find_model(path: Path, content: object, choice: Choice) -> tuple[dict[str, Tensor], str, tuple[str, ...]]:
    if isinstance(content, Mapping):
        inner = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Mapping)}
        dicts = {k: tensors for k, v in inner.items() if (tensors := _only_tensors(path, v))}
        names = tuple(dicts)
        # Inner dicts first: the top level of a training checkpoint may hold its step or loss as a tensor.
        name = choose(path.name, names, choice)
        if name:
            return dicts[name], name, names
        tensors = _only_tensors(path, content)
        models = [name for name in names if _is_model(dicts[name])]
        if tensors and (_is_model(tensors) or len(models) != 1):
            return tensors, "", names
        candidates = models or list(names)
        if len(candidates) == 1:
            return dicts[candidates[0]], candidates[0], names
        if candidates:
            listed = ", ".join(sorted(candidates)[:6])
            raise BadInput(f"{path.name} holds several models ({listed}); save one as {', '.join(INNER_DICTS)}")
    raise BadInput(f"{path.name} holds {type(content).__name__}, no named tensors; give another file")


def _is_model(tensors: Mapping[str, Tensor]) -> bool:
    """True if a tensor belongs to a layer, as its name has a dot; `step` and `initted` have none."""
    return any("." in name for name in tensors)


def _only_tensors(path: Path, content: Mapping[Any, Any]) -> dict[str, Tensor]:
    tensors = {k: v.detach() for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
    for name, tensor in tensors.items():
        # A pickle can also hold sparse, shape-only and endlessly repeated tensors.
        dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise BadInput(f"{name} in {path.name} has no values of its own; {SAFE_COPY}")
    return tensors
