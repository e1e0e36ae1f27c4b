"""Make the files of a run appear together once all are complete, or not at all.

Until then they lie in a hidden folder inside the output folder. A video's has its request and its committed blocks
too, which survive a run that is stopped.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from ..errors import BadInput, why
from .small_files import MEGABYTE, parse_json, read_small

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
PICTURE = "route.png"
REPORT = "report.json"
BLOCKS = "blocks"
FILES = (LATENTS, VIDEO, PICTURE, BLOCKS, REPORT)
"""What a finished video is, in the order in which it appears: its report comes last."""
BLOCK = re.compile(r"[0-9]{6,}\.safetensors")
CSV = "videos.csv"
LINES = "videos.jsonl"
"""The table next to numbered videos, as two files."""

UNFINISHED = ".unfinished"
"""The hidden folder of a video."""
WRITING = ".writing-"
"""How the names of those of other files begin."""
REQUEST = "request.json"
EARLIER = "earlier"
LARGEST_REQUEST = 64 * MEGABYTE
MAKING = ".making"
SHORT_LOCK = ".lock"
"""Held while files are moved or a run begins. Most versions of filelock leave it, empty, in the output folder."""
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
ATTEMPTS = 100
T = TypeVar("T")


class Staging:
    """The files of a run in its hidden folder `work`, until all are moved into `folder` at once."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder = folder
        self.work = work
        self._names: list[str] = []

    def path(self, name: str) -> Path:
        """Return where to write the file `name`, or the folder of blocks, until it is moved.

        Raises `BadInput` if there is a folder by that name, other than one of blocks.
        """
        final = self.folder / name
        if final.is_dir():
            ours = name == BLOCKS and all(BLOCK.fullmatch(path.name) for path in final.iterdir())
            if not ours:
                raise BadInput(f"{final} is a folder that is not ours; move it away")
        if name not in self._names:
            self._names.append(name)
        return self.work / name

    def move(self) -> None:
        """Move every file into place, in the order they were asked for.

        Two may write into one folder at once; then all files are those of the last to finish.
        Raises `FileNotFoundError`, before moving any, if a file was asked for but not written.
        """
        for name in self._names:
            (self.work / name).stat()
        with lock_of(self.folder / SHORT_LOCK):
            if len(self._names) == 1:
                [name] = self._names
                (self.work / name).replace(self.folder / name)
            else:
                self._exchange()

    def _exchange(self) -> None:
        """Move the files of an earlier run away first, so that even a kill leaves no mix of two runs.

        If one move fails or is interrupted, all are undone.
        """
        earlier = self.work / EARLIER
        shutil.rmtree(earlier, ignore_errors=True)
        earlier.mkdir()
        names = reversed(self._names)
        away = [(self.folder / name, earlier / name) for name in names if (self.folder / name).exists()]
        moves = [*away, *((self.work / name, self.folder / name) for name in self._names)]
        try:
            for source, target in moves:
                source.replace(target)
        except BaseException:
            for source, target in reversed(moves):
                if target.exists() and not source.exists():
                    target.replace(source)
            raise
        shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def staged_outputs(folder: Path, request: Mapping[str, str] | None = None) -> Iterator[Staging]:
    """Stage files for `folder`, which is made if need be; they move there at the end of the `with` block.

    `request`: of a video, whose folder is locked by `lock_folder`; a stopped run's files of another request are
    removed. If any exception leaves the block, interrupts included, no trace of the files stays, nor of a folder
    that was made for them, unless a block was committed. Files of an earlier run stay unchanged.
    Raises `BadInput` if the folder cannot be written to, or if the disk is full.
    """
    made, work = _enter(folder, lambda: _open_work(folder, request))
    try:
        if request and not (work / REQUEST).exists():
            (work / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        staging = Staging(folder, work)
        yield staging
        staging.move()
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise BadInput(f"the disk of {folder} is full; free some space") from error
    finally:
        _tidy(work)
        _remove_empty(made)


def check_unfinished(folder: Path) -> Path:
    """Return the hidden folder of a video in `folder`. Raises `BadInput` if something else has its name."""
    work = folder / UNFINISHED
    if os.path.lexists(work) and not _is_ours(work):
        raise BadInput(f"{work} is not ours; move it away")
    return work


def unfinished_blocks(folder: Path) -> list[Path]:
    """Return the blocks that a run for `folder` committed and did not finish. No link is followed to them."""
    blocks = folder / UNFINISHED / BLOCKS
    ours = _is_ours(blocks.parent) and _is(stat.S_ISDIR, blocks)
    return sorted(path for path in blocks.iterdir() if BLOCK.fullmatch(path.name)) if ours else []


def unfinished_request(folder: Path) -> dict[str, Any]:
    """Return the request of an unfinished video as `staged_outputs` got it; an empty one if it is damaged."""
    try:
        content = parse_json(read_small(folder / UNFINISHED / REQUEST, LARGEST_REQUEST))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_ours(work: Path) -> bool:
    """True if a run of ours made this hidden folder, and not for a link or anything else by its name."""
    if not _is(stat.S_ISDIR, work) or (work / BLOCKS).is_symlink():
        return False
    return _is(stat.S_ISREG, work / REQUEST) or all(path.name == BLOCKS for path in work.iterdir())


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """True if `path` is of this type and no symlink."""
    try:
        return kind(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Within the `with` block, keep every other call out of `folder`, which is made if need be.

    Raises `BadInput` if the folder cannot be written to, or if another call has locked it.
    """

    def acquire() -> FileLock | None:
        lock = lock_of(folder / MAKING)
        with lock_of(folder / SHORT_LOCK), suppress(Timeout):
            lock.acquire(blocking=False)
        return lock if lock.is_locked else None

    made, lock = _enter(folder, acquire)
    if lock is None:
        raise BadInput(f"another run is writing into {folder}; wait for it or name another folder")
    try:
        yield
    finally:
        # The folder may be gone, or its disk full: an unused lock does no harm.
        with suppress(OSError), lock_of(folder / SHORT_LOCK):
            (folder / MAKING).unlink(missing_ok=True)
            lock.release()
        lock.release()
        _remove_empty(made)


def check_writable(folder: Path) -> None:
    """Raise `BadInput` unless files can be written into `folder`, existing or new; leave no trace."""
    made, _ = _enter(folder, lambda: None)
    _remove_empty(made)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise `BadInput` unless the disk of `folder` has `needed` free bytes; the folder need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed:
        fault = f"the run needs about {_size(needed)} in {folder}, but {_size(free)} are free"
        raise BadInput(f"{fault}; free some space or name another folder")


def _enter(folder: Path, begin: Callable[[], T]) -> tuple[list[Path], T]:
    """Make `folder`, try to write into it, then `begin`; return the new folders, innermost first."""
    attempts = ATTEMPTS
    while True:
        new: list[Path] = []
        attempts -= 1
        try:
            for path in reversed([path for path in (folder, *folder.parents) if not path.is_dir()]):
                path.mkdir(exist_ok=True)
                new.insert(0, path)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")
            return new, begin()
        except BadInput:
            raise
        except (OSError, ValueError) as error:
            # Another run may have made or removed the folder just now; what is in the way is there again.
            if not (attempts and isinstance(error, FileNotFoundError | FileExistsError)):
                _remove_empty(new)
                raise _unusable(folder, error) from error


def lock_of(path: Path) -> FileLock:
    """Return the lock that is a file `path`: held in a `with` block, and released when its process dies."""
    return FileLock(path, thread_local=False)  # a run may begin in one thread and be closed in another


def _open_work(folder: Path, request: Mapping[str, str] | None) -> Path:
    """Return the hidden folder for files of `folder`, with nothing in it but blocks of the same request."""
    if request is None:
        return Path(tempfile.mkdtemp(prefix=WRITING, dir=folder))
    work = check_unfinished(folder)
    if work.exists():
        if unfinished_request(folder) != request:
            shutil.rmtree(work / BLOCKS, ignore_errors=True)
        _tidy(work)
    (work / BLOCKS).mkdir(parents=True, exist_ok=True)
    return work


def _tidy(work: Path) -> None:
    """Delete staging leftovers, except committed blocks and a failed swap, with their request."""
    folders = (work / BLOCKS, work / EARLIER)
    kept = [REQUEST] if any(folder.is_dir() and any(folder.iterdir()) for folder in folders) else []
    for path in sorted(work.iterdir(), key=lambda path: path.name == REQUEST):  # last: it shows that this is ours
        if path.name not in kept and not path.is_dir():
            path.unlink()
    for folder in (*folders, work):
        with suppress(OSError):
            folder.rmdir()


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders up to the first with anything but an unused lock: another run may use it by now."""
    for folder in folders:
        try:
            if any(path.name != SHORT_LOCK for path in folder.iterdir()):
                return
            with lock_of(folder / SHORT_LOCK).acquire(blocking=False):
                (folder / SHORT_LOCK).unlink()
                folder.rmdir()
        except (OSError, Timeout):
            return


def _unusable(folder: Path, error: OSError | ValueError) -> BadInput:
    link = next((path for path in (folder, *folder.parents) if _is(stat.S_ISLNK, path) and not path.exists()), None)
    reason = "it is a file" if isinstance(error, FileExistsError) else why(error)
    if link:
        reason = f"{link} is a link to nowhere"
    return BadInput(f"cannot write into the folder {folder} ({reason}); name another folder")


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
