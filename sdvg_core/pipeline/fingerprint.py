"""What a model's file is, without its folders: its name, and a hash of it, or of pieces of it if it is large."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

# A larger file would take seconds. Of it so many pieces are hashed, evenly spread; different training changes every
# one of them. What else changes a transformer or a scorer is seen once it is loaded (`checkpoints.weights`).
WHOLE, AT_ONCE = 1 << 29, 1 << 22
PIECES, PIECE_BYTES = 64, 1 << 16


def fingerprint(path: Path) -> str:
    """Return a hash of a file; for an index or a folder, of all files in that folder."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return _of_file(path)
    folder = path if path.is_dir() else path.parent
    parts = sorted(f"{inner.name} {_of_file(inner)}" for inner in folder.iterdir() if inner.is_file())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    there = path.stat()
    return _of_contents(path, there.st_size, there.st_mtime_ns, there.st_ino)


@lru_cache(maxsize=256)
def _of_contents(path: Path, size: int, *written: int) -> str:
    """Return the hash of a file as it was `written`, taken once."""
    piece, step = (AT_ONCE, AT_ONCE) if size <= WHOLE else (PIECE_BYTES, size // PIECES)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(piece))
    return digest.hexdigest()


def named(path: Path | None) -> str:
    """Return a file's name with the beginning of its fingerprint."""
    if path is None:
        return "none"
    return f"{path.name} {fingerprint(path)[:12] if path.exists() else 'missing'}"
