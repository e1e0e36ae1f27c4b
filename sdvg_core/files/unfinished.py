"""Write a large file for as long as it takes: hidden until it is whole, and gone on with by the same command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from ..errors import BadInput, why
from .outputs import FULL, UnwritableFolder


@contextmanager
def unfinished_file(path: Path, part: Path, size: int) -> Iterator[BinaryIO]:
    """Yield the file `part`, which may have a beginning; at the end of the `with` block it appears as `path`.

    `part`: hidden, next to `path`; an exception leaves what it has. `size`: bytes that it will have. Raises
    `BadInput` if `path` exists, another program writes it, or there is no room or no permission.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    check_absent(path)
    try:
        with lock.acquire(blocking=False), _removed(Path(lock.lock_file)):
            check_free(path.parent, size - bytes_there(part))
            with _kept_unless_empty(part), part.open("r+b" if part.exists() else "w+b") as file:
                yield file
            _publish(part, path)
    except Timeout as error:
        raise BadInput(f"another program is making {path}; wait for it, or name another file") from error
    except OSError as error:
        if error.errno in FULL:
            fault = f"the disk of {path.parent} is full"
            raise BadInput(f"{fault}; free some room, and the same command goes on") from error
        raise UnwritableFolder(path.parent, why(error), "name a file elsewhere") from error


@contextmanager
def _kept_unless_empty(part: Path) -> Iterator[None]:
    """Remove a part that an exception leaves without a byte."""
    try:
        yield
    except BaseException:
        if not bytes_there(part):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    """Remove a file at the end, while it is locked."""
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def check_absent(path: Path) -> None:
    """Raise `BadInput` if there is something at a path."""
    if os.path.lexists(path):
        raise BadInput(f"{path} is there already; move it away, or name another file")


def bytes_there(part: Path) -> int:
    """Return the bytes of a file, 0 if there is none."""
    return part.stat().st_size if part.exists() else 0


def check_free(folder: Path, needed: int) -> None:
    """Raise `BadInput` if the disk of a folder has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        fault = f"{folder} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed"
        raise BadInput(f"{fault}; free some room, or name a place on another disk")


def _publish(part: Path, path: Path) -> None:
    """Give the finished part its name. A link cannot replace a file; not every disk has links."""
    try:
        os.link(part, path)
        part.unlink()
    except FileExistsError:
        check_absent(path)
    except OSError:
        check_absent(path)
        part.rename(path)
