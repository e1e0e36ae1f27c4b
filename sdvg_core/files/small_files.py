"""Read small untrusted files, with a bound on their size."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000
LARGEST_FILE = 16 * MEGABYTE
"""Of text or JSON: the largest real one, a tokenizer, has 5 MB. Parsing 64 MB would take 20 s and 3 GB."""

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
REPORT = "report.json"
"""Names in the folder of a finished video, for code that reads and code that writes them."""


def read_small(path: Path, limit: int = LARGEST_FILE) -> bytes:
    """Return the content of a file.

    Raises `OSError`, and `ValueError` as `check_regular` does, or if it has more than `limit` bytes.
    """
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit / MEGABYTE:g} MB")
    return content


def check_regular(path: Path) -> None:
    """Raise `OSError` if there is no such file, and `ValueError` if it is not a regular one, or empty.

    A pipe without a writer would block for ever, and so would files of the system that are 0 bytes long.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is a folder" if stat.S_ISDIR(status.st_mode) else "it is no regular file")
    if not status.st_size:
        raise ValueError("it is empty")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raises `ValueError` for other text, also if it is nested too deeply for Python."""
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
