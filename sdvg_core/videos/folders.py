"""Choose the folder of a call's videos, and say what it has of them: it is new, unfinished or finished.

A folder that the user named takes these very videos and no others. Without one, calls are numbered: `out/001` and
so on. What a folder has counts only once it is locked, so that two runs never take one number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum, auto
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files.outputs import (
    LATENTS,
    REPORT,
    VIDEO,
    VIDEOS_TABLE,
    TakenFolder,
    UnwritableFolder,
    check_unfinished,
    lock_folder,
    names_in,
    next_free,
    unfinished_blocks,
    unfinished_request,
    video_file,
)
from ..report.run_report import read_report
from ..weights.latents import read_metadata
from ..weights.weight_file import open_weights
from .asked import Batch
from .fingerprint import Fingerprint, differences, digest_of

FOLDER_NUMBER = re.compile("[0-9]{1,9}")
"""Name of a numbered folder."""


class State(Enum):
    """What a folder has of a video. `UNFINISHED`: blocks, or all its files with fewer blocks than are asked for."""

    NEW = auto()
    UNFINISHED = auto()
    FINISHED = auto()


@contextmanager
def claim_folder(batch: Batch, requests: Sequence[Fingerprint]) -> Iterator[tuple[Path, Mapping[Path, State]]]:
    """Lock the folder of a call inside the `with` block; yield it with the folder and state of each video.

    `requests`: one per video. The folder is the one that the user named, else the newest numbered one with any of
    these videos, or the next number. Raises `TakenFolder` if the named one has something else, or another run locks
    it.
    """
    with ExitStack() as lock:
        if batch.named:
            folder = batch.output
            states = _lock_and_look(batch, requests, folder, lock)
        else:
            for folder in _numbered_folders(batch, requests):
                with suppress(TakenFolder):
                    states = _lock_and_look(batch, requests, folder, lock)
                    break
        yield folder, states


def _numbered_folders(batch: Batch, requests: Sequence[Fingerprint]) -> Iterator[Path]:
    """Yield the numbered folders with any of these videos, the newest first; then free ones, without end."""
    numbers = sorted(filter(FOLDER_NUMBER.fullmatch, names_in(batch.output)), key=int, reverse=True)
    for number in numbers:
        if _is_begun(batch, requests, batch.output / number):
            yield batch.output / number
    for free in count(int(numbers[0]) + 1 if numbers else 1):
        yield batch.output / f"{free:03d}"


def _lock_and_look(
    batch: Batch, requests: Sequence[Fingerprint], folder: Path, lock: ExitStack
) -> Mapping[Path, State]:
    """Lock the folder of a call until `lock` is closed, and return the folder and state of each video in it.

    A folder that is not writable needs no lock if all of them are finished.
    """
    with ExitStack() as attempt:
        try:
            attempt.enter_context(lock_folder(folder))
        except UnwritableFolder:
            with suppress(BadInput):
                states = _states_in(batch, requests, folder)
                if set(states.values()) == {State.FINISHED}:
                    return states
            raise
        states = _states_in(batch, requests, folder)
        lock.push(attempt.pop_all())
        return states


def _states_in(batch: Batch, requests: Sequence[Fingerprint], folder: Path) -> Mapping[Path, State]:
    places = _places(batch, requests, folder)
    states = {path: state_of(path, request, batch) for path, request in places}
    if not batch.numbered:
        return states
    if not batch.overwrite and set(states.values()) == {State.NEW}:
        others = [folder / name for name in filter(FOLDER_NUMBER.fullmatch, names_in(folder))]
        if any(video_file(path) or _kept_request(path) is not None for path in others):
            raise TakenFolder(f"{folder} has other videos; {elsewhere(batch)}, or add --overwrite")
    with suppress(FileNotFoundError), (folder / VIDEOS_TABLE).open("rb") as file:
        if not file.read(40).startswith(b"number,folder,"):
            raise TakenFolder(f"{folder} has a table that is not ours; {elsewhere(batch)}")
    return states


def state_of(folder: Path, request: Fingerprint, batch: Batch) -> State:
    """Return what `folder` has of one video. Raises `TakenFolder` if something else is in its place."""
    check_unfinished(folder)
    file = video_file(folder)
    kept = _kept_request(folder)
    shown = shows(folder, request)
    if file is None and _is_full(folder):
        kind = "is no empty folder and has no video" if folder.is_dir() else "is a file"
        raise TakenFolder(f"{folder} {kind}; {elsewhere(batch)}")
    if file is not None and _request_in(folder) is None:
        raise TakenFolder(f"{folder} has a {file} that is not ours; {elsewhere(batch)}")
    if batch.overwrite:
        return State.UNFINISHED if kept == request else State.NEW
    if file is not None and not shown:
        fault = f"{folder} has a {file} of another request"
        raise TakenFolder(f"{fault}; {elsewhere(batch)}, or add --overwrite")
    if shown and _is_whole(folder, batch.request.blocks):
        return State.FINISHED
    if kept is not None and kept != request:
        other = differences({name: str(value) for name, value in kept.items()}, request)
        fault = f"{folder} has an unfinished video that differs in {other}"
        raise TakenFolder(f"{fault}; repeat its command, or {elsewhere(batch)}")
    return State.UNFINISHED if shown or kept is not None else State.NEW


def elsewhere(batch: Batch) -> str:
    """Return the remedy for a folder that is taken."""
    return f"name another folder, such as {next_free(batch.output)}"


def shows(folder: Path, request: Fingerprint) -> bool:
    """True if the video in `folder` is of this request, though perhaps of fewer blocks."""
    return _request_in(folder) == digest_of(request)


def _request_in(folder: Path) -> str | None:
    """Return the hash of the request of the video in `folder`, or None if there is none of ours."""
    try:
        request = read_metadata(open_weights(folder / LATENTS)).get("request")
    except (BadInput, OSError):
        return None
    return request if isinstance(request, str) else None


def _kept_request(folder: Path) -> Mapping[str, Any] | None:
    """Return the request of an unfinished video for `folder`, or None if no block of one is there."""
    return unfinished_request(folder) if unfinished_blocks(folder) else None


def _places(batch: Batch, requests: Sequence[Fingerprint], folder: Path) -> Iterator[tuple[Path, Fingerprint]]:
    """Yield the folder of each video in the folder of the call, with its request."""
    for number, request in enumerate(requests, 1):
        yield (folder / f"{number:04d}" if batch.numbered else folder), request


def _is_begun(batch: Batch, requests: Sequence[Fingerprint], folder: Path) -> bool:
    """True if `folder` has any part of these videos."""
    places = _places(batch, requests, folder)
    return any(shows(path, request) or _kept_request(path) == request for path, request in places)


def _is_whole(folder: Path, blocks: int) -> bool:
    """True if the video in `folder` has its mp4, and all its blocks."""
    files = (folder / REPORT).exists() and (folder / VIDEO).exists()
    return files and len(read_report(folder / REPORT).blocks) == blocks


def _is_full(folder: Path) -> bool:
    """True for a file, and for a folder with more than hidden files (which are moved with it)."""
    if not folder.is_dir():
        return os.path.lexists(folder)
    return any(not path.name.startswith(".") for path in folder.iterdir())
