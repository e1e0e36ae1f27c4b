"""Read small untrusted files, with a limit on their size."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
REPORT = "report.json"
"""Names in the folder of a finished video, for code that reads and code that writes them."""


def read_small(path: Path, limit: int) -> bytes:
    """Return the content of a file.

    Raises `OSError`, and `ValueError` if it has more than `limit` bytes or is not a regular file (a pipe without a
    writer would block forever).
    """
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit / MEGABYTE:g} MB")
    return content


def check_regular(path: Path) -> None:
    """Raise `OSError` if there is no such file, and `ValueError` if it is not a regular one."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ValueError("it is a folder" if stat.S_ISDIR(mode) else "it is no regular file")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raises `ValueError` for other text, also if it is nested too deeply for Python."""
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
