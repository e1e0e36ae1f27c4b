"""Fingerprints of model files, and the identities of a run's parts for cache keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..causal_wan.header import WanHeader
from ..checkpoints.model_files import ModelFiles
from ..devices.device import arithmetic_on, check_device
from ..engine.memo import Identities
from ..scorers.image_reward import find_vocabulary
from .options import LoadOptions

# Of larger files, which would take seconds, only evenly spread pieces are hashed: further training changes them
# all. Other changes to a transformer or a scorer are found after loading (`weight_digest`).
WHOLE = 1 << 29
AT_ONCE = 1 << 22
PIECES = 64
PIECE_BYTES = 1 << 16


def part_fingerprints(files: ModelFiles, load: LoadOptions, models: Mapping[str, WanHeader]) -> Identities:
    """Return the identities of a run's parts: files, settings and arithmetic. `models`: the run's, by role."""
    execution = load.execution
    arithmetic = arithmetic_on(check_device(load.device))
    side_arithmetic = arithmetic_on(load.side)

    def model(role: str) -> str:
        path: Path | None = getattr(files, role)
        if path is None or role not in models:
            return ""
        header = models[role]
        assert header.checkpoint is not None, "a host names its models itself"
        identity = repr((header.checkpoint.weights.state_dict, header.preset.identity))
        changed: list[Any] = [(fingerprint(lora.file.path), lora.strength) for lora in header.loras]
        if control := header.control:
            changed.append((fingerprint(control.weights.path), "control"))
        kernels = (execution.attention, execution.kv_dtype, execution.compile)
        rounded = (load.weight_dtype,) if role == "target" and load.weight_dtype != "default" else ()
        return repr((fingerprint(path), identity, load.dtype, kernels, arithmetic, *changed, *rounded))

    of_codec = (load.vae_dtype, execution.vae_layers, execution.compile, load.tae_kind)
    scorer = ""
    if files.reward:
        read = fingerprint(files.reward), fingerprint(find_vocabulary(files.reward, files.vocabulary))
        scorer = repr((*read, load.scorer_dtype, side_arithmetic))
    return Identities(
        drafter=model("drafter"),
        target=model("target"),
        codec=repr((fingerprint(files.vae), *of_codec, side_arithmetic)),
        scorer=scorer,
    )


def fingerprint(path: Path) -> str:
    """Return a hash of a file, or of all files in the folder for a folder or an index."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return _of_file(path)
    folder = path if path.is_dir() else path.parent
    parts = sorted(f"{inner.name} {_of_file(inner)}" for inner in folder.iterdir() if inner.is_file())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    status = path.stat()
    return _of_contents(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=256)
def _of_contents(path: Path, size: int, *written: int) -> str:
    """Return the hash of a file, memoised until its size or `written` (time, inode) changes."""
    piece, step = (AT_ONCE, AT_ONCE) if size <= WHOLE else (PIECE_BYTES, size // PIECES)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(piece))
    return digest.hexdigest()


def named(path: Path | None) -> str:
    """Return a file's name with the first digits of its fingerprint."""
    if path is None:
        return "none"
    return f"{path.name} {fingerprint(path)[:12] if path.exists() else 'missing'}"
