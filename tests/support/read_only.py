"""A folder that refuses every change, as a read-only disk does: root may write whatever a folder's mode says."""

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "open")


def make_read_only(folder: Path, patched: pytest.MonkeyPatch) -> None:
    """Let the system refuse what changes anything in or below `folder`, which stays readable."""
    for name in CHANGES:
        patched.setattr(os, name, _refusing(folder, getattr(os, name), _changes))
    for module in (io, builtins):
        patched.setattr(module, "open", _refusing(folder, open, _opens_to_write))


def _refusing(folder: Path, function: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        paths = [path, *arguments[:1]] if function.__name__ in ("rename", "replace") else [path]
        inside = [p for p in paths if isinstance(p, str | Path) and Path(p).absolute().is_relative_to(folder)]
        if inside and writes(function, *arguments, **options):
            if function.__name__ == "mkdir" and Path(path).is_dir():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return function(path, *arguments, **options)

    return refuse


def _changes(function: Callable[..., Any], *arguments: Any, **_: Any) -> bool:
    return function.__name__ != "open" or bool(arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _opens_to_write(_: object, mode: str = "r", *__: Any, **___: Any) -> bool:
    return not set(mode).isdisjoint("wax+")
