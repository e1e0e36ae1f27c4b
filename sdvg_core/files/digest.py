"""Digests of files, by which they are known again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

READ_AT_ONCE = 1 << 24


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(READ_AT_ONCE):
        digest.update(piece)
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of(file)
