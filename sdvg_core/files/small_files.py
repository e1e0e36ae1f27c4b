"""Small files that a stranger may have written, read whole: bounded in size, and JSON in depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000
DEEPEST = 64


def read_small(path: Path, limit: int) -> bytes:
    """Return what is in a file. Raises `OSError`, and `ValueError` if there are more than `limit` bytes."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit / MEGABYTE:g} MB")
    return content


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text.

    Raises `ValueError` if it is none, or nested so deeply that a walk through it could not end well.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
