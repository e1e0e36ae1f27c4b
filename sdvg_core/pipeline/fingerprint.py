"""What a model's file is, without its folders: its name, and a hash of pieces of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

# How many pieces of a weight file are hashed, evenly spread. Different training changes every one of them.
PIECES, PIECE_BYTES = 64, 1 << 16


def fingerprint(path: Path) -> str:
    """Return a hash of a file's size and pieces of it; for an index or a folder, of all files in that folder."""
    if path.is_file() and not path.name.endswith(".index.json"):
        return _of_file(path)
    folder = path if path.is_dir() else path.parent
    parts = sorted(f"{inner.name} {_of_file(inner)}" for inner in folder.iterdir() if inner.is_file())
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _of_file(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in range(0, size, max(PIECE_BYTES, size // PIECES)):
            file.seek(start)
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()


def named(path: Path | None) -> str:
    """Return a file's name with the beginning of its fingerprint."""
    if path is None:
        return "none"
    return f"{path.name} {fingerprint(path)[:12] if path.exists() else 'missing'}"
