"""A lock file, so that no two runs do at once what only one may do. Whoever holds it and dies lets go of it.

Not the package filelock: 3.25 removes the file afterwards, 3.16 and 4.2 leave it in the user's folder, and which
of them is installed beside ComfyUI is not for us to say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO, wait: bool) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: BinaryIO, wait: bool) -> None:
        # Of the open file and not of the process, so that it also holds between two threads.
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(path: Path) -> BinaryIO | None:
    """Make the file `path` and hold it until what is returned is closed; None if another holds it already."""
    file = path.open("a+b")
    try:
        _lock(file, wait=False)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file `path` inside the `with` block, waiting for whoever holds it; then it is gone."""
    with _waited_for(path):
        try:
            yield
        finally:
            # Windows removes no file that is open; there it stays, and is empty.
            if sys.platform != "win32":
                path.unlink(missing_ok=True)


def _waited_for(path: Path) -> BinaryIO:
    """Return the open and locked file. The one before us has removed it, so it may be another one by now."""
    while True:
        file = path.open("a+b")
        try:
            _lock(file, wait=True)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
