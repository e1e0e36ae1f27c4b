"""Files of a video's blocks: the results of the models by cache key, for resuming and re-use.

They hold latents and scores but no prompt, as keys are hashes. Each file contains a hash of its content, because a
block damaged on disk would otherwise be re-used unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from ..engine.records import BlockRecord
from ..engine.reuse import Store, Tensors
from ..errors import BadInput
from ..files.outputs import BLOCKS_FOLDER, unfinished_blocks
from ..report.run_report import read_member, record_from_dict, record_to_dict
from ..weights.latents import METADATA, read_metadata
from ..weights.weight_file import open_weights

DIGEST = "digest"
"""Metadata field with the file's hash. It sorts first."""
UNSEALED = "0" * 64
"""Placeholder of the hash while it is computed."""


class BlockFiles:
    """The block files of an unfinished video: reads those of a stopped run, and writes each new block.

    `damaged`: names of files that changed since they were written, here or in folders for re-use. `recalled`: keys
    of the results in those folders.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._earlier: dict[str, tuple[BlockRecord, Mapping[str, Tensors]]] = {}
        self.damaged: list[str] = []
        self.recalled: set[str] = set()

    def recall(self, store: Store, *others: Path) -> None:
        """Load the results of these files, and of block files in `others`, into `store`."""
        for path in (*(path for other in others for path in block_files(other)), *sorted(self._folder.iterdir())):
            try:
                metadata, results = read_block(path)
                if path.parent == self._folder:
                    record = record_from_dict(read_member(metadata, "record", dict, path.name), path.name)
                    self._earlier[path.name] = record, results
            except BadInput:
                self.damaged.append(path.name)
                continue
            if path.parent != self._folder:
                self.recalled |= results.keys()
            for key, result in results.items():
                store.put(key, result)

    def add(self, number: int, record: BlockRecord, results: Mapping[str, Tensors]) -> BlockRecord:
        """Write a block atomically and return its record; if the file exists already, return the earlier record."""
        name = f"{number:06d}.safetensors"
        earlier, known = self._earlier.pop(name, (record, {}))
        if results and results.keys() <= known.keys():
            return replace(earlier, prompt=record.prompt)
        part = self._folder.with_name(f"{name}.part")  # of this block, as shots are made side by side
        metadata = {DIGEST: UNSEALED, "record": record_to_dict(replace(record, prompt=""))}
        write_block(part, results, metadata)
        part.replace(self._folder / name)
        return record


def block_files(folder: Path) -> list[Path]:
    """Return the block files in `folder`, of a finished and of an unfinished video."""
    return [*sorted((folder / BLOCKS_FOLDER).glob("*.safetensors")), *unfinished_blocks(folder)]


def read_block(path: Path) -> tuple[Mapping[str, Any], dict[str, Tensors]]:
    """Return a file's metadata, and its results by key. Raises `BadInput` if it changed since it was written."""
    file = open_weights(path)
    metadata = read_metadata(file)
    content = path.read_bytes()
    digest = metadata.get(DIGEST)
    if not isinstance(digest, str) or _sealed(content.replace(digest.encode(), UNSEALED.encode(), 1)) != content:
        raise BadInput(f"{path.name} changed since it was written; make that video again")
    # Foreign tensors are harmless: no key matches, and `engine.session` checks shapes. Clone, as this run may move
    # or replace the file.
    keys = [key for key in file if (shape := file.info[key].shape) and shape[0]]
    return metadata, {key: tuple(tensor.clone() for tensor in file[key].unbind(0)) for key in keys}


def write_block(path: Path, results: Mapping[str, Tensors], metadata: Mapping[str, Any]) -> None:
    """Write results, one tensor per key (predictions `n b c t h w`, scores `1 f`), and flush them to disk.

    `metadata`: with an `UNSEALED` digest.
    """
    # One sorted JSON text, as in latents.safetensors, for reproducible bytes.
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    tensors = {key: torch.stack(result).contiguous() for key, result in sorted(results.items())}
    with path.open("wb") as file:
        file.write(_sealed(save(tensors, {METADATA: text})))
        file.flush()
        os.fsync(file.fileno())


def _sealed(content: bytes) -> bytes:
    """Return a file's content with the placeholder replaced by the hash of the unsealed content."""
    return content.replace(UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode(), 1)
