"""A hash inside a file that tells whether it is as it was written: a changed block would be used without a word."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGEST, UNSEALED = "digest", "0" * 64
"""The field of a file's metadata, and its value until the file is sealed. Sorted, it comes first."""


def seal(path: Path) -> None:
    """Write the hash of a file into it, and wait until it is on the disk. Its metadata has `UNSEALED` so far."""
    with path.open("rb+") as file:
        sealed = _sealed(file.read())
        file.seek(0)
        file.write(sealed)
        file.flush()
        os.fsync(file.fileno())


def is_sealed(path: Path, metadata: Mapping[str, Any]) -> bool:
    """Whether a file is as it was when it was sealed. `metadata`: its own."""
    digest, content = metadata.get(DIGEST), path.read_bytes()
    if not isinstance(digest, str):
        return False
    return _sealed(content.replace(digest.encode(), UNSEALED.encode(), 1)) == content


def _sealed(content: bytes) -> bytes:
    """Return a file's content with the hash of itself, taken without it."""
    return content.replace(UNSEALED.encode(), hashlib.sha256(content).hexdigest().encode(), 1)
