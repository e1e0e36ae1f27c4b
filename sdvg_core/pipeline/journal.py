"""The committed blocks of an unfinished video, one file each, so that a stopped run can be resumed.

Each file also has whatever else the models returned since the block before: drafts that were not kept, and scores.
And it is sealed, because a block that changed on the disk would be continued without a word.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..engine.keys import Identities, hash_text
from ..engine.records import BlockRecord
from ..engine.store import Result, Store
from ..errors import BadInput
from ..files.outputs import JOURNAL, is_going_on, throw_away, unfinished_in
from ..report.record_json import record_from_dict, record_to_dict, take
from .identity import Identity, differences, digest_of
from .latents import SavedLatents, load_latents, save_latents
from .results import DIGEST, UNSEALED, is_sealed, pack, read_results, seal

SUFFIX = ".safetensors"
LONGEST_COMMAND = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A committed block: its latents `b c t h w`, its record, and results by key, those of its block among them.

    `made_by`: a hash of each part of the run that made it, weights and settings.
    """

    latents: Tensor
    record: BlockRecord
    results: Mapping[str, Result]
    made_by: Mapping[str, str]


class Journal:
    """The blocks committed so far, in a folder that is created with the first one."""

    def __init__(self, folder: Path, identity: Identity, command: Sequence[str] = ()) -> None:
        """Read the blocks an earlier run of the same request left. Raises `BadInput` if a file is damaged.

        `command`: the words of the command line that goes on with this run.
        """
        self._folder, self._identity, self._command = folder, dict(identity), list(command)
        self.before = tuple(_read(path) for path in _files(folder))
        self.blocks = len(self.before)
        # How long each result is that was written: a repair needs a draft's first estimates, a later run may not.
        self._written = {key: len(result) for entry in self.before for key, result in entry.results.items()}
        self._new: dict[str, Result] = {}
        self._made_by: dict[str, str] = {}

    def made_with(self, identities: Identities) -> None:
        """Note what this run's parts are, with a hash of all weights.

        Raises `BadInput` if the blocks there were made with others: of a large file, the request knows samples.
        """
        self._made_by = {field.name: hash_text(getattr(identities, field.name)) for field in fields(identities)}
        for entry in self.before:
            others = [part for part, made_by in self._made_by.items() if entry.made_by.get(part) != made_by]
            if others:
                changed = f"the files of {', '.join(others)} have changed since the unfinished video"
                raise BadInput(
                    f"{changed}; put the earlier ones back or delete {self._folder.parent} to start over"
                )

    @property
    def digest(self) -> str:
        """A hash that marks the finished files as the result of this request."""
        return digest_of(self._identity)

    def follow(self, store: Store) -> None:
        """Put what was read into `store`, and write down whatever else is used of it from now on."""
        for entry in self.before:
            for key, result in entry.results.items():
                store.put(key, result)
        store.on_use = self._used

    def _used(self, key: str, result: Result) -> None:
        if len(result) > self._written.get(key, 0):
            self._written[key] = len(result)
            self._new[key] = result

    def add(self, latents: Tensor, record: BlockRecord) -> None:
        """Write a block to disk, whole or not at all."""
        self._folder.mkdir(exist_ok=True)
        part = self._folder.parent / "block.part"
        results: dict[str, Tensor] = {}
        keys: list[str] = []
        for key in list(self._new):
            result = self._new.pop(key)
            # The block itself is written once, as latents; its result's tensor is a copy of them.
            same = len(result) == 1 and result[0].shape == latents.shape and torch.equal(result[0], latents.cpu())
            keys += [key] if same else []
            results |= {} if same else {key: pack(result)}
        metadata = {
            DIGEST: UNSEALED,
            "command": self._command,
            "keys": keys,
            "made_by": self._made_by,
            "record": record_to_dict(record),
            "request": self._identity,
        }
        save_latents(part, latents, metadata, results)
        seal(part)
        part.replace(_file(self._folder, self.blocks))
        self.blocks += 1


def find_unfinished(folder: Path, identity: Identity) -> Path | None:
    """Return the hidden folder in `folder` of the run to resume, the longest one, or None if there is none.

    Raises `BadInput` if the unfinished video there is another one, naming what differs, or is being made right now.
    """
    first = {work: _first(work / JOURNAL) for work in unfinished_in(folder)}
    requests = {work: found and found["request"] for work, found in first.items()}
    stopped = [work for work in requests if not is_going_on(work)]
    same = [work for work, request in requests.items() if request == identity]
    if not same:
        _refuse_damaged(requests)
    if same and not set(same) & set(stopped):
        raise BadInput(
            f"only a stopped run can be resumed, but the one in {folder} is still running; wait for it or stop it"
        )
    if stopped and not same:
        newest = max(stopped, key=lambda work: work.stat().st_mtime)
        raise BadInput(
            f"{folder} has an unfinished video that differs in {differences(requests[newest] or {}, identity)}; "
            "repeat its command or name another folder",
            _command(first[newest] or {}),
        )
    return left_by(folder, identity)


def left_by(folder: Path, identity: Identity) -> Path | None:
    """Return the longest that stopped runs of this very request left in `folder`, or None."""
    same = [work for work in unfinished_in(folder) if _is_of(work, identity)]
    stopped = [work for work in same if not is_going_on(work)]
    return max(stopped, key=lambda work: len(list(_files(work / JOURNAL))), default=None)


def drop_unfinished(folder: Path, identity: Identity) -> None:
    """Remove what stopped runs of this request left in `folder`, now that the video is finished."""
    for work in unfinished_in(folder):
        if _is_of(work, identity):
            throw_away(work)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}{SUFFIX}"


def _files(folder: Path) -> Iterator[Path]:
    number = 0
    while os.path.lexists(_file(folder, number)):
        yield _file(folder, number)
        number += 1


def _read(path: Path) -> Entry:
    saved, where = _load(path), f"{path.name} of the unfinished video"
    record = record_from_dict(take(saved.metadata, "record", (dict,), where), where)
    take(saved.metadata, "keys", (list,), where)
    made_by = take(saved.metadata, "made_by", (dict,), where)
    # Copies, because the file is removed when the video is finished.
    results = {key: tuple(tensor.clone() for tensor in result) for key, result in read_results(path)}
    return Entry(saved.latents.clone(), record, results, made_by)


def _first(journal: Path) -> Mapping[str, Any] | None:
    """Return what a journal's first block says of its `request`; None if that block is damaged."""
    try:
        saved = _load(_file(journal, 0))
        take(saved.metadata, "request", (dict,), journal.name)
    except BadInput:
        return None
    return saved.metadata


def _is_of(work: Path, identity: Identity) -> bool:
    """Whether a hidden folder is of a run of this request."""
    first = _first(work / JOURNAL)
    return first is not None and first["request"] == identity


def _command(first: Mapping[str, Any]) -> str:
    """Return a line with the command that goes on with a run. Its words are quoted: the file may be anyone's."""
    words = first.get("command")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return ""
    line = shlex.join(["python", "-m", "sdvg_core", *words])
    return f"To finish that one: {line}" if len(line) <= LONGEST_COMMAND and line.isprintable() else ""


def _refuse_damaged(requests: Mapping[Path, Mapping[str, Any] | None]) -> None:
    damaged = next((work for work, request in requests.items() if request is None), None)
    if damaged:
        raise BadInput(
            f"the first block of an unfinished video must be as it was written, but that in {damaged} is not; "
            "delete that folder to start over"
        )


def _load(path: Path) -> SavedLatents:
    """Read a block. Raises `BadInput` if the file is not as it was written."""
    damaged = BadInput(
        f"{path.name} in {path.parent}, of an unfinished video, is not as it was written; delete it and all later "
        "blocks to start over from there"
    )
    try:
        saved = load_latents(path)
    except BadInput as error:
        raise damaged from error
    if not is_sealed(path, saved.metadata):
        raise damaged
    return saved
