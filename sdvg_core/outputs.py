"""The files of a run appear together when all are complete, or not at all."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BadInput

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
PICTURE = "route.png"
REPORT = "report.json"


class Staging:
    """Hands out temporary paths beside the final ones, and moves all files into place at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unfinished: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Return where to write the file `name`, hidden and in the same folder, until it is moved.

        Its suffix is not that of `name`: tell a library that goes by the suffix which format to write.
        Raises `BadInput` if there is a folder by that name.
        """
        if (self.folder / name).is_dir():
            raise BadInput(
                f"expected to write {name} into {self.folder}, but there is a folder of that name; move it away"
            )
        # Two runs may write into one folder; the last to finish wins, whole.
        return self._unfinished.setdefault(name, self.folder / f".{name}.{secrets.token_hex(4)}.part")

    def move(self) -> None:
        """Move every file into place, in the order they were asked for.

        Raises `FileNotFoundError`, before any is moved, if one was asked for but not written.
        """
        for path in self._unfinished.values():
            path.stat()
        for name, path in self._unfinished.items():
            path.replace(self.folder / name)

    def discard(self) -> None:
        """Remove what has not been moved."""
        for path in self._unfinished.values():
            path.unlink(missing_ok=True)


@contextmanager
def staged_outputs(folder: Path) -> Iterator[Staging]:
    """Stage files for `folder`, made if it is not there; they are moved into it at the end of the `with` block.

    If the block is left by any exception, an interruption included, no trace of them stays, nor of the folder
    if it was made for them; files of an earlier run stay as they were.
    Raises `BadInput` if the folder cannot be written to.
    """
    made = _make_folder(folder)
    staging, complete = Staging(folder), False
    try:
        _try_to_write(folder)
        yield staging
        staging.move()
        complete = True
    finally:
        staging.discard()
        if not complete:
            _remove_empty(made)


def check_writable(folder: Path) -> None:
    """Raise `BadInput` unless files can be written into `folder`, or into a new folder there; leave no trace."""
    made = _make_folder(folder)
    try:
        _try_to_write(folder)
    finally:
        _remove_empty(made)


def _make_folder(folder: Path) -> list[Path]:
    """Make `folder` and return the folders that were new, innermost first."""
    made: list[Path] = []
    try:
        for path in reversed((folder, *folder.parents)):
            if not path.is_dir():
                path.mkdir()
                made.insert(0, path)
    except (OSError, ValueError) as error:
        _remove_empty(made)
        raise _unusable(folder, error) from error
    return made


def _try_to_write(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise _unusable(folder, error) from error


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        if any(folder.iterdir()):
            return
        folder.rmdir()


def _unusable(folder: Path, error: OSError | ValueError) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"expected a folder to write into, but {folder} is none ({reason}); name another folder")
