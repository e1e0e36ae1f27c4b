"""Files that only have a checkpoint's name: what a server or git gives in its place, or one of another kind."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BadInput, printable, unreadable

BEGINNING = 4096
PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html\b|\?xml\b)", re.IGNORECASE)
# A checkpoint never begins so: a safetensors file with its header's length, a pickle with its protocol.
ERROR = re.compile(
    rb"(\xef\xbb\xbf)?\s*\{\s*\"(error|errors|message|detail)\"\s*:\s*\"?(?P<text>[^\"{}\[\]]{0,80})"
)
ARCHIVE = b"PK\x03\x04"
"""How a zip archive begins. As a safetensors file it would state a header of gigabytes."""
POINTER = re.compile(rb"version https://git-lfs\S*\s")


def check_download(path: Path) -> None:
    """Raise `BadInput` if a file is a web page, an error message, a pointer of Git LFS or a renamed archive."""
    try:
        with path.open("rb") as file:
            beginning = file.read(BEGINNING)
    except OSError as error:
        raise unreadable("checkpoint", path.name, error) from error
    found = what_came_instead(beginning)
    if found:
        raise BadInput(f"{path.name} is no checkpoint, but {found}")
    if path.suffix == ".safetensors" and beginning.startswith(ARCHIVE):
        found = f"{path.name} is a zip archive, as of PyTorch"
        raise BadInput(f"{found}; rename it to {path.stem}.pt, or download it again")


def what_came_instead(beginning: bytes) -> str | None:
    """Return what a file is that a server or git gave in place of another, and what to do; None for any other file.

    `beginning`: its first `BEGINNING` bytes.
    """
    if PAGE.match(beginning):
        return "a web page, as sites send where a login is needed; download the file itself"
    found = ERROR.match(beginning)
    if found:
        text = printable(found["text"].decode("utf-8", "replace")).strip()
        detail = f" ({text})" if text else ""
        return f"a server's error message{detail}; download the file itself, with a login if needed"
    if POINTER.match(beginning):
        return "a pointer of Git LFS; run git lfs pull in its repository, or download the file itself"
    return None
