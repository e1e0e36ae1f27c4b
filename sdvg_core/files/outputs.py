"""Make the files of a run appear together once all are complete, or not at all.

Until then they lie in a hidden folder inside the output folder. It stays locked while its run is alive. The
contents of its journal survive a run that is stopped.
"""

from __future__ import annotations

import errno
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from ..errors import BadInput, why

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
PICTURE = "route.png"
REPORT = "report.json"
BLOCKS = "blocks.safetensors"
FILES = (VIDEO, LATENTS, PICTURE, REPORT, BLOCKS)
"""What a finished video is."""
CSV, LINES = "videos.csv", "videos.jsonl"
"""What lies next to numbered videos."""

UNFINISHED = ".unfinished-"
# As `tempfile.mkdtemp` names them.
OURS = re.compile(re.escape(UNFINISHED) + "[a-z0-9_]{8}")
LOCK, JOURNAL, EARLIER = "lock", "journal", "earlier"
HELD = ".making"
SHORT_LOCK = ".lock"
"""Held while files are moved or a run begins. Most versions of filelock leave it, empty, in the output folder."""
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
ATTEMPTS = 100
T = TypeVar("T")


class Staging:
    """Hands out paths in a run's hidden folder `work`, and moves all files into `folder` at once."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        # Files in here survive a run that was stopped, and are removed after one that finished.
        self.journal = work / JOURNAL
        self._names: list[str] = []

    def path(self, name: str) -> Path:
        """Return where to write the file `name` until it is moved.

        Raises `BadInput` if there is a folder by that name.
        """
        if (self.folder / name).is_dir():
            raise BadInput(
                f"cannot write {name} into {self.folder}, for there is a folder of that name; move it away"
            )
        if name not in self._names:
            self._names.append(name)
        return self.work / name

    def move(self) -> None:
        """Move every file into place, in the order they were asked for.

        Two runs may write into one folder; then all files are those of the last to finish.
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
        """Move the files of an earlier run away first, so that even a kill leaves no mix of two runs."""
        earlier = self.work / EARLIER
        earlier.mkdir(exist_ok=True)
        there = [name for name in self._names if (self.folder / name).exists()]
        away = [(self.folder / name, earlier / name) for name in there]
        _move_all([*away, *((self.work / name, self.folder / name) for name in self._names)])
        shutil.rmtree(earlier, ignore_errors=True)


@contextmanager
def staged_outputs(folder: Path, unfinished: Path | None = None) -> Iterator[Staging]:
    """Stage files for `folder`, which is made if need be; they move there at the end of the `with` block.

    `unfinished`: the hidden folder of a stopped run, to continue in. If any exception leaves the block, interrupts
    included, no trace of the files stays, nor of a folder that was made for them, unless there is a journal. Files
    of an earlier run stay unchanged.
    Raises `BadInput` if the folder cannot be written to, if the disk is full, or if another run uses `unfinished`.
    """
    made, (work, lock) = _enter(folder, lambda: _open_work(folder, unfinished))
    try:
        with _told_if_full(folder):
            staging = Staging(folder, work)
            try:
                yield staging
                staging.move()
                shutil.rmtree(staging.journal, ignore_errors=True)
            finally:
                _remove_files(work)
    finally:
        lock.release()
        _leave(work)
        _remove_empty(made)


def unfinished_in(folder: Path) -> tuple[Path, ...]:
    """Return the hidden folders with a journal of runs for `folder` that were stopped or are still running."""
    return tuple(sorted(work for work in folder.glob(f"{UNFINISHED}*") if _is_ours(work) and _has_journal(work)))


def _is_ours(work: Path) -> bool:
    """Whether a run of ours made this hidden folder. What only has such a name is left alone, a link above all."""
    if not OURS.fullmatch(work.name) or not _is(stat.S_ISDIR, work):
        return False
    return _is(stat.S_ISREG, work / LOCK) or not _holds_anything(work)


def _holds_anything(folder: Path) -> bool:
    """Whether a folder has contents; one that another run has just removed has none."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether there is something of this kind by that name, and no link to it."""
    try:
        return kind(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_going_on(work: Path) -> bool:
    """Whether the run of this hidden folder is still alive."""
    try:
        lock_of(work / LOCK).acquire(blocking=False).lock.release()
    except Timeout:
        return True
    (work / LOCK).touch()  # some versions of filelock have just removed it, and by it we know the folder as ours
    return False


def throw_away(work: Path) -> None:
    """Remove the hidden folder of a run that was stopped."""
    if not is_going_on(work):
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep every other call out of `folder`, which is made if need be, inside the `with` block.

    Raises `BadInput` if the folder cannot be written to, or if another call holds it.
    """

    def take() -> FileLock | None:
        lock = lock_of(folder / HELD)
        with lock_of(folder / SHORT_LOCK), suppress(Timeout):
            lock.acquire(blocking=False)
        return lock if lock.is_locked else None

    made, held = _enter(folder, take)
    if held is None:
        raise BadInput(f"another run is writing into {folder}; wait for it or name another folder")
    try:
        yield
    finally:
        # The folder may be gone, or its disk full: a file that nobody holds is in nobody's way.
        with suppress(OSError), lock_of(folder / SHORT_LOCK):
            (folder / HELD).unlink(missing_ok=True)
            held.release()
        held.release()
        _remove_empty(made)


def check_writable(folder: Path) -> None:
    """Raise `BadInput` unless files can be written into `folder`, existing or new; leave no trace."""
    made, _ = _enter(folder, lambda: None)
    _remove_empty(made)


def check_room(folder: Path, needed: int) -> None:
    """Raise `BadInput` unless the disk of `folder` has `needed` free bytes; the folder need not exist yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise BadInput(
            f"the run needs about {_size(needed)} in {folder}, but {_size(free)} are free; "
            "free some space or name another folder"
        )


def _enter(folder: Path, begin: Callable[[], T]) -> tuple[list[Path], T]:
    """Make `folder`, try to write into it, then `begin`; return the new folders, innermost first."""
    _check_current(folder)
    for _ in range(ATTEMPTS):
        new: list[Path] = []
        try:
            for path in reversed([path for path in (folder, *folder.parents) if not path.is_dir()]):
                path.mkdir(exist_ok=True)
                new.insert(0, path)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")
            return new, begin()
        except FileNotFoundError:
            continue  # another run made the folder, did not need it, and has just removed it
        except FileExistsError as error:
            if not any(_in_the_way(path) for path in (folder, *folder.parents)):
                continue  # the same, seen while making the folder
            _remove_empty(new)
            raise _unusable(folder, error) from error
        except BadInput:
            raise
        except (OSError, ValueError) as error:
            _remove_empty(new)
            raise _unusable(folder, error) from error
    raise BadInput(f"cannot write into {folder}, for it keeps vanishing; name another folder")


def _check_current(folder: Path) -> None:
    """Raise `BadInput` if `folder` is to be in the current folder, and that was deleted."""
    if folder.is_absolute():
        return
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise BadInput(
            f"{folder} lies in the current folder, but that was deleted; change into another one"
        ) from error


def _in_the_way(path: Path) -> bool:
    """Whether `path` is there and no folder, in one look: between two, another run may make or remove it.

    A link that leads nowhere, or round in a circle, is in the way too.
    """
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return _is(stat.S_ISLNK, path)
    except OSError:
        return True


def lock_of(path: Path) -> FileLock:
    """Return the lock that is a file `path`: held in a `with` block, and let go of by whoever dies."""
    return FileLock(path, thread_local=False)  # a run may begin in one thread and be closed in another


def _open_work(folder: Path, unfinished: Path | None) -> tuple[Path, FileLock]:
    """Return a run's hidden folder and its lock; remove the folders of runs that died before their first block."""
    with lock_of(folder / SHORT_LOCK):
        for left in folder.glob(f"{UNFINISHED}*"):
            if _is_ours(left) and not _has_journal(left):
                throw_away(left)
        if unfinished and not unfinished.is_dir():
            raise BadInput(f"cannot resume {unfinished}, for it is gone; another run has finished it")
        work = unfinished or Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        lock = lock_of(work / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BadInput(f"cannot resume {work}, for another run is resuming it; wait for that run") from None
    return work, lock


@contextmanager
def _told_if_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise BadInput(f"cannot write the video into {folder}, for the disk is full; free some space") from error


def _has_journal(work: Path) -> bool:
    return _is(stat.S_ISDIR, work / JOURNAL) and _holds_anything(work / JOURNAL)


def _move_all(moves: Sequence[tuple[Path, Path]]) -> None:
    """Move files; if one move fails or is interrupted, undo all of them."""
    try:
        for here, there in moves:
            here.replace(there)
    except BaseException:
        for here, there in reversed(moves):
            if there.exists() and not here.exists():
                there.replace(here)
        raise


def _remove_files(work: Path) -> None:
    for path in work.iterdir():
        if path.name not in (JOURNAL, LOCK, EARLIER):
            path.unlink()


def _leave(work: Path) -> None:
    """Remove the hidden folder and its lock, which nobody holds any more, unless there is something to resume."""
    if _has_journal(work):
        (work / LOCK).touch()
    else:
        (work / LOCK).unlink(missing_ok=True)
    for folder in (work / JOURNAL, work / EARLIER, work):
        with suppress(OSError):
            folder.rmdir()


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders up to the first with anything but a lock that nobody holds: another run may use it by now."""
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
