"""Read small files that a stranger may have written: the size is limited, and the depth of JSON."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000
DEEPEST = 64


def read_small(path: Path, limit: int) -> bytes:
    """Return the content of a file.

    Raises `OSError`, and `ValueError` if it has more than `limit` bytes or is no regular file: a pipe that nobody
    writes to would be waited for.
    """
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit / MEGABYTE:g} MB")
    return content


def check_regular(path: Path) -> None:
    """Raise `OSError` unless there is something by that name, and `ValueError` unless it is a regular file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text.

    Raises `ValueError` if it is not JSON, names a member of an object twice, or is nested too deeply for code that
    walks through it.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant, object_pairs_hook=_once)
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


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of two members with one name, readers take different ones."""
    found = dict(members)
    if len(found) < len(members):
        twice, _ = Counter(name for name, _ in members).most_common(1)[0]
        raise ValueError(f"it states {twice[:60]!r} twice")
    return found
