"""Results as rows: one JSON object a line, added as it is made, so that a run that was killed goes on.

What a row has is its experiment's own; a column that most experiments leave empty would be none.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock

from sdvg_core.errors import BadInput
from sdvg_core.files.small_files import parse_json

APPEND = ".append.lock"
Row = Mapping[str, Any]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of all complete lines; none if there is no file.

    An incomplete last line, of a process that was killed, is left out. Raises `BadInput` for a damaged file.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise BadInput(f"line {number} of {path} is no row of results; remove it to make it again")
        rows.append(row)
    return rows


def add_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows, in place of an incomplete last line; they are on the disk before this returns.

    Several processes may do so at once. NaN, which JSON does not know, becomes null.
    """
    lines = [json.dumps(_without_nan(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(APPEND)), path.open("a+b", buffering=0) as file:
        _cut_incomplete_line(file)
        file.write("".join(lines).encode("utf-8", "backslashreplace"))
        os.fsync(file.fileno())


def _cut_incomplete_line(file: FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read() not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
