"""The text of locks: how many first blocks of a shot are locked, and the digest of their latents."""

from __future__ import annotations

import re

from ...sdvg_core.errors import BadInput


def read_locks(text: str) -> dict[str, tuple[int, str]]:
    """Parse locks such as "5:0123456789abcdef,k3f=2:..."; return number of blocks and digest by key of the shot.

    The key of the first shot is empty if it is not stated. Raises `BadInput` for other text.
    """
    locks: dict[str, tuple[int, str]] = {}
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"(?:([a-z0-9]{1,12})=)?([1-9][0-9]{0,5}):([0-9a-f]{16})", part.strip())
        key = f"#{match[1]}" if match and match[1] else ""
        if match is None or key in locks:
            raise BadInput(f"the locked blocks are {text!r:.60}; lock blocks on the strip, or empty the field")
        locks[key] = (int(match[2]), match[3])
    return locks
