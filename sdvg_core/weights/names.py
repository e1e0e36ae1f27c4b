"""Rename the tensors of a checkpoint by a table.

Every network keeps its table beside it; nothing else knows how two namings differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Table = Mapping[str, str | None]
"""Parts of a name, whole ones between dots -> what they become; empty to drop them, None to leave the tensor out.

`^` stands for the beginning of a name. Of two keys that begin at the same part, the longer one counts.
"""
Rename = Callable[[str], str]
"""A tensor's name in a file -> its name in the network; empty for a tensor that is left out."""


def renamer(table: Table, *, prefix: str = "") -> Rename:
    """Return the function that renames by a table. `prefix`: dropped first; tensors without it are left out."""
    keys = "|".join(map(re.escape, sorted(table, key=len, reverse=True)))
    known = re.compile(rf"(?<![^.])({keys})(?![^.])")

    def rename(name: str) -> str:
        if not name.startswith(prefix):
            return ""
        pieces = known.split(f"^.{name.removeprefix(prefix)}")
        pieces[1::2] = (table[key] for key in pieces[1::2])
        if None in pieces:
            return ""
        return ".".join(part for part in "".join(pieces).split(".") if part not in ("", "^"))

    return rename
