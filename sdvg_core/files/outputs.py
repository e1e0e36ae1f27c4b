"""Write outputs atomically: a video's folder is renamed once it is whole; other files are replaced.

Until then the video is in a hidden folder next to its own, `.NAME.unfinished`, with a lock and the request; its
blocks survive a run that is stopped. An earlier video's folder is first renamed into the hidden one, other files in
it are moved back, and then it is deleted. Files written one by one in place would leave a mixture of two videos.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import BadInput, why
from .small_files import LATENTS as LATENTS
from .small_files import REPORT as REPORT
from .small_files import VIDEO as VIDEO
from .small_files import parse_json, read_small

ROUTE_PICTURE = "route.png"
BLOCKS_FOLDER = "blocks"
VIDEO_FILES = (LATENTS, VIDEO, ROUTE_PICTURE, BLOCKS_FOLDER, REPORT)
"""Files and folders of a finished video."""
BLOCK = re.compile(r"[0-9]{6,}\.safetensors")
VIDEOS_TABLE = "videos.csv"
"""Table of numbered videos."""

LOCK = "lock"
REQUEST = "request.json"
UNFINISHED = "video"
REPLACED = "replaced"
HIDDEN = (LOCK, REQUEST, UNFINISHED, REPLACED)
"""Entries of a hidden folder."""
LONGEST_FOLDER = 255 - len("..unfinished-999")
"""Bytes of a folder's name; that of the hidden folder of `NAME-999`, which may be proposed instead, still fits."""
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
ATTEMPTS = 100


class TakenFolder(BadInput):
    """Something else is in a folder, or another run has it."""


class UnwritableFolder(BadInput):
    """Nothing can be written into a folder."""

    def __init__(self, folder: Path, reason: str, way_out: str = "name another folder") -> None:
        """`reason`: as the system gives it."""
        super().__init__(f"cannot write into the folder {folder} ({reason}); {way_out}")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock `folder`, which need not exist, against other runs inside the `with` block.

    Clean up the hidden folder before and after. Raises `UnwritableFolder` if that cannot be made, and `TakenFolder`
    if it is not ours or another run has the lock.
    """
    hidden = hidden_folder(folder)
    made = [hidden, *(path for path in hidden.parents if not path.is_dir())]
    with ExitStack() as exits:
        exits.callback(_remove_empty, made)
        lock = _lock(hidden, folder)
        exits.callback(_unlock, lock)
        exits.callback(_put_in_order, folder)
        _put_in_order(folder)
        yield


def _lock(hidden: Path, folder: Path) -> FileLock:
    """Make and lock the hidden folder of `folder`."""
    path = hidden / LOCK
    lock = FileLock(path, thread_local=False)  # a run may begin in one thread and be closed in another
    attempts = ATTEMPTS
    while True:
        attempts -= 1
        try:
            check_unfinished(folder)
            hidden.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                lock.acquire(blocking=False)
                # If the last owner deleted the file meanwhile, we locked one that no other run sees. Ours is still
                # open, so no new file can have its inode number.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return lock
        except Timeout as error:
            fault = f"another run is writing into {folder}"
            raise TakenFolder(f"{fault}; wait for it or name another folder") from error
        except OSError as error:
            # Another run may have made or removed the folder just now; a lasting obstacle fails again.
            if not (attempts and isinstance(error, FileNotFoundError | FileExistsError)):
                raise UnwritableFolder(folder, why(error)) from error
        lock.release()


def _unlock(lock: FileLock) -> None:
    try:
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # while locked, so that no other run has it
    finally:
        lock.release()


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def staged_video(folder: Path, request: Mapping[str, str], *, replace: bool = False) -> Iterator[Path]:
    """Yield a folder for a video's files; at the end of the `with` block, rename it to `folder`.

    `folder` must be locked by `lock_folder`. Its `blocks` has those of a stopped run of the same request, and keeps
    them if an exception leaves the block. `replace`: whether `folder` may have an earlier video.
    Raises `BadInput` if the disk is full or the folder cannot be replaced.
    """
    folder = _real(folder)
    work = open_unfinished(folder, request)
    with _disk_of(folder):
        yield work
        try:
            if folder.exists():
                if not replace and (name := video_file(folder)):
                    raise FileExistsError(errno.EEXIST, f"it has got a {name} meanwhile")
                folder.rename(work.with_name(REPLACED))
            work.rename(folder)
        except OSError as error:
            if error.errno in FULL:
                raise
            way_out = f"name another one, and add --reuse {folder} for its blocks"
            raise BadInput(f"the folder {folder} cannot be replaced ({why(error)}); {way_out}") from error


def open_unfinished(folder: Path, request: Mapping[str, str]) -> Path:
    """Return the folder of an unfinished video for `folder`, which must be locked; make it if it is not there.

    Its `blocks` has those of a stopped run of the same request. Raises `BadInput` if the disk is full.
    """
    work = hidden_folder(folder) / UNFINISHED
    if work.exists() and unfinished_request(folder) != request:
        shutil.rmtree(work)
    with _disk_of(folder):
        if not work.exists():
            (work / BLOCKS_FOLDER).mkdir(parents=True)
            work.with_name(REQUEST).write_text(json.dumps(request), encoding="utf-8")
    return work


def _put_in_order(folder: Path) -> None:
    """Finish or undo an interrupted replacement, then delete leftovers except blocks and their request.

    Raises `BadInput` if something is in the way.
    """
    folder = _real(folder)
    hidden = hidden_folder(folder)
    work = hidden / UNFINISHED
    replaced = hidden / REPLACED
    if replaced.exists():
        if not os.path.lexists(folder):
            replaced.rename(folder)
        elif work.exists():
            raise BadInput(f"{folder} is new, and what was there before is {replaced}; move one of them away")
        else:
            _empty(replaced, folder)
    if not unfinished_blocks(folder):
        shutil.rmtree(work, ignore_errors=True)
        (hidden / REQUEST).unlink(missing_ok=True)
        return
    for path in work.iterdir():
        if path.name != BLOCKS_FOLDER:
            path.unlink()


def _empty(replaced: Path, folder: Path) -> None:
    """Move other files from an earlier video's folder to the new `folder`, and delete the rest."""
    blocks = replaced / BLOCKS_FOLDER
    others = [
        path for path in replaced.iterdir() if path.name not in VIDEO_FILES or (path != blocks and path.is_dir())
    ]
    if _is(stat.S_ISDIR, blocks):
        others += [path for path in blocks.iterdir() if not BLOCK.fullmatch(path.name)]
    for path in others:
        target = folder / path.relative_to(replaced)
        if os.path.lexists(target):
            raise BadInput(f"{path} was in {folder}, which has another now; move it away")
        path.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)  # files open on Windows are deleted by the next call


def video_file(folder: Path) -> str | None:
    """Return the name of a file in `folder` that a new video would replace; else None."""
    return next((name for name in (VIDEO, *VIDEO_FILES) if os.path.lexists(folder / name)), None)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `path` at the end of the `with` block; make its folder if needed.

    An exception leaves `path` unchanged. Raises `BadInput` if the disk is full or the folder is not writable.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with _disk_of(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            part.replace(path)
    except OSError as error:
        if error.filename not in map(str, (part, path.parent)):
            raise
        raise UnwritableFolder(path.parent, why(error), "allow it, or copy the folder elsewhere") from error
    finally:
        with suppress(OSError):
            part.unlink()


def check_output(folder: Path, *, renamed: bool) -> None:
    """Raise `BadInput` for a folder that cannot be written, as far as can be told without writing.

    `renamed`: whether it is the folder of one video, not of numbered ones.
    """
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise UnwritableFolder(folder, f"{path} is a link to nowhere")
        if path != folder and path.is_file():
            raise UnwritableFolder(folder, f"{path} is a file")
        if path.name == ".." and not path.exists():
            raise UnwritableFolder(folder, f"there is no {path.parent}")
    where = Path.cwd()
    real = _real(folder)
    if (length := len(os.fsencode(real.name))) > LONGEST_FOLDER:
        fault = f"the name of the folder {real.name:.40}... has {length} bytes"
        raise BadInput(f"{fault}; give it one of at most {LONGEST_FOLDER}")
    below = where.relative_to(real).parts if where.is_relative_to(real) else None
    here = below == ()
    if renamed and (here or os.path.ismount(folder)):
        kind = "the folder you are in" if here else "a disk of its own"
        raise BadInput(f"{folder} is {kind}, and a video comes as a new folder; name one in it")
    if below and (renamed or below[0].isdecimal()):
        # The working directory would be renamed, and relative paths would lead elsewhere.
        raise BadInput(f"you are inside {folder}, which a new video replaces; go out of it, or name another one")


def check_unfinished(folder: Path) -> None:
    """Raise `TakenFolder` if something else has the name of the hidden folder."""
    hidden = hidden_folder(folder)
    if os.path.lexists(hidden) and not _is_ours(folder):
        raise TakenFolder(f"{hidden} is not ours; move it away")


def names_in(folder: Path) -> set[str]:
    """Return what has a name in `folder`, or is unfinished under that name; empty if there is no such folder.

    It is one listing, because on a network drive a thousand look-ups take seconds.
    """
    return {path.name.removeprefix(".").removesuffix(".unfinished") for path in folder.glob("*")}


def next_free(folder: Path) -> Path:
    """Return the first of the folders `NAME-2`, `NAME-3` ... next to `folder` that is not there."""
    known = folder if folder.name not in ("", "..") else _real(folder)
    names = names_in(known.parent)
    return Path(f"{known}-{next(n for n in count(2) if f'{known.name}-{n}' not in names)}")


def unfinished_blocks(folder: Path) -> list[Path]:
    """Return the blocks of an unfinished video for `folder`. Follows no links."""
    blocks = hidden_folder(folder) / UNFINISHED / BLOCKS_FOLDER
    ours = _is_ours(folder) and _is(stat.S_ISDIR, blocks)
    return sorted(path for path in blocks.iterdir() if BLOCK.fullmatch(path.name)) if ours else []


def unfinished_request(folder: Path) -> dict[str, Any]:
    """Return the request of an unfinished video as given to `staged_video`; empty if it is damaged."""
    try:
        content = parse_json(read_small(hidden_folder(folder) / REQUEST))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _real(folder: Path) -> Path:
    """Resolve links: a link must not be renamed, and the hidden folder must be on the same disk."""
    try:
        return Path(os.path.realpath(folder))
    except ValueError as error:
        raise UnwritableFolder(folder, why(error)) from error


def hidden_folder(folder: Path) -> Path:
    """Return the hidden folder of `folder`."""
    real = _real(folder)
    return real.parent / f".{real.name}.unfinished"


def _is_ours(folder: Path) -> bool:
    """True if the hidden folder of `folder` was made by a run of ours, and is no link."""
    hidden = hidden_folder(folder)
    work = hidden / UNFINISHED
    if not _is(stat.S_ISDIR, hidden) or any(
        path.is_symlink() for path in (work, work / BLOCKS_FOLDER, hidden / REPLACED)
    ):
        return False
    paths = list(hidden.iterdir())
    strays = [path for path in paths if path.name not in HIDDEN]
    if not all(_is(stat.S_ISREG, path) for path in strays):
        return False
    # Desktops put hidden files into folders. Other files are the user's; they are accepted if a request shows that
    # the rest is ours, or if there is nothing else but our lock, which is empty.
    visible = [path for path in strays if not path.name.startswith(".")]
    rest = [path for path in paths if path.name in HIDDEN and (path.name != LOCK or path.stat().st_size)]
    return not visible or not rest or bool(unfinished_request(folder))


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """True if `path` is of this type and no symlink."""
    try:
        return kind(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def _disk_of(folder: Path) -> Iterator[None]:
    """Turn an error of a full disk into `BadInput`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise BadInput(f"the disk of {folder} is full; free some space") from error
