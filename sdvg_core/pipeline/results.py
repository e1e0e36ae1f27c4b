"""The file `blocks.safetensors` of a finished video: what its models returned, by key, for later runs to use again.

It holds latents and scores, and no prompt: the keys are hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..checkpoints.weights import open_weights
from ..engine.keys import Identities, hash_text
from ..engine.plan import ModelSet
from ..engine.store import Result, Store
from ..errors import BadInput
from ..files.outputs import BLOCKS, JOURNAL, unfinished_in
from .latents import DTYPES, KEY, METADATA, read_metadata

ROLES = ("drafter", "target")
KEY_LENGTH = 64
LATENTS_DIMS, SCORES_DIMS = 6, 2
DIGEST, UNSEALED = "digest", "0" * 64
"""The field of a file's metadata, and its value until the file is sealed. Sorted, it comes first."""


def pack(result: Result) -> Tensor:
    """Return a result as one tensor: a block's estimates `n b c t h w`, or its frames' scores `1 f`."""
    return torch.stack(result).contiguous()


def unpack(tensor: Tensor) -> Result:
    """Return what was packed."""
    return tuple(tensor.unbind(0))


def save_results(path: Path, results: Mapping[str, Result], identities: Identities) -> None:
    """Write results, and hashes of the models that made them, and seal the file."""
    made_by = {role: hash_text(getattr(identities, role)) for role in ROLES if getattr(identities, role)}
    # One JSON text under one key, as in latents.safetensors, so that the bytes do not vary.
    metadata = {METADATA: json.dumps({DIGEST: UNSEALED, **made_by}, sort_keys=True)}
    path.write_bytes(save({key: pack(result) for key, result in sorted(results.items())}, metadata))
    seal(path)


def check_reusable(folder: Path, identities: Identities, asked: ModelSet) -> None:
    """Raise `BadInput` if there is no video in `folder`, if a file is damaged, or if other models made it."""
    if not _files(folder):
        raise BadInput(
            f"there is nothing to re-use in {folder}, for it has no {BLOCKS}; give the folder of an earlier video"
        )
    for path in _files(folder):
        _check_sealed(path)
    if (folder / BLOCKS).is_file():
        _check_models(folder / BLOCKS, identities, asked)


def recall_from(folder: Path, store: Store) -> None:
    """Put into `store` what the video in `folder` was made of, and videos that were stopped there.

    Raises `BadInput` if a file is damaged.
    """
    for path in _files(folder):
        _check_sealed(path)
        for key, result in read_results(path):
            # Copies, because the file may be replaced by this very run.
            store.put(key, tuple(tensor.clone() for tensor in result))


def _files(folder: Path) -> list[Path]:
    """Return the files with results of a finished video, and of videos that were stopped."""
    stopped = [path for work in unfinished_in(folder) for path in sorted((work / JOURNAL).glob("*.safetensors"))]
    return [path for path in (folder / BLOCKS, *stopped) if path.is_file()]


def read_results(path: Path) -> Iterator[tuple[str, Result]]:
    """Yield the results in a file by key. Raises `BadInput` if it is damaged."""
    file = open_weights(path)
    for key in file:
        info = file.info[key]
        if len(key) != KEY_LENGTH or len(info.shape) not in (LATENTS_DIMS, SCORES_DIMS) or 0 in info.shape:
            continue
        if info.dtype in DTYPES:
            yield key, unpack(file[key])
    # A journal has the block itself under a name of its own, and its keys beside it.
    keys = read_metadata(file).get("keys")
    if isinstance(keys, list) and KEY in file and file.info[KEY].dtype in DTYPES:
        latents = file[KEY]
        for key in keys:
            yield str(key), (latents,)


def _check_sealed(path: Path) -> None:
    if not is_sealed(path, read_metadata(open_weights(path))):
        raise BadInput(
            f"blocks of an earlier video must be as they were written, but {path.name} in {path.parent} is not; "
            "leave --reuse out, or make that video again"
        )


def _check_models(path: Path, identities: Identities, asked: ModelSet) -> None:
    made_by = read_metadata(open_weights(path))
    used = [role for role in ROLES if getattr(asked, role)]
    if not any(made_by.get(role) == hash_text(getattr(identities, role)) for role in used):
        raise BadInput(
            f"the {' and '.join(used)} of {path.parent} are others than now; give the same, or leave --reuse out"
        )


# --- a hash inside a file tells whether it is as it was written: a changed block would be used without a word


def seal(path: Path) -> None:
    """Write the hash of a file into it, and wait until it is on the disk. Its metadata has `UNSEALED` so far."""
    with path.open("rb+") as file:
        sealed = _sealed(file.read())
        file.seek(0)
        file.write(sealed)
        file.flush()
        os.fsync(file.fileno())


def is_sealed(path: Path, metadata: Mapping[str, Any]) -> bool:
    """Whether a file is as it was when it was sealed. `metadata`: its own."""
    digest, content = metadata.get(DIGEST), path.read_bytes()
    if not isinstance(digest, str):
        return False
    return _sealed(content.replace(digest.encode(), UNSEALED.encode(), 1)) == content


def _sealed(content: bytes) -> bytes:
    """Return a file's content with the hash of itself, taken without it."""
    return content.replace(UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode(), 1)
