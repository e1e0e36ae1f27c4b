"""Which latents a TAEHV file wants: the two kinds have the same tensors, so they tell nothing about it.

`taew2_1` takes normalised latents as they are. `lighttaew2_1` takes what the Wan VAE's own decoder takes: each
channel times its standard deviation, plus its mean. The dtype tells nothing either, for anybody may convert a file.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

from ..choices import AUTO as AUTO
from ..choices import TAE_KINDS as TAE_KINDS
from ..choices import StatedKind as StatedKind
from ..choices import TaeKind as TaeKind
from ..errors import BadInput

# kind: length in bytes and sha256 of the file as published (lightx2v/Autoencoders; madebyollin/taehv).
PUBLISHED: dict[TaeKind, tuple[int, str]] = {
    "lighttaew2_1": (45_274_004, "8666e769f449f2d955651564bcadb0c5e12461b50480e67b7241f32c15f11a19"),
    "taew2_1": (22_642_902, "04766eac0221b5390b985ae3fdcca652cbb4b1e8b82b28ea7ff89dfad1b1a93f"),
}
_NAMED = re.compile(r"(light[-_.]?)?tae[-_.]?w[-_.]?2[-_.]1(?![0-9])", re.IGNORECASE)


def kind_of(path: Path, stated: StatedKind = AUTO) -> TaeKind:
    """Return the kind of the TAEHV at `path`, as stated or as its digest or its name tells.

    Raises `BadInput` if nobody says it, or if what is stated contradicts digest or name.
    """
    if stated not in (AUTO, *TAE_KINDS):
        raise BadInput(
            f"tae_kind must be one of {AUTO}, {', '.join(TAE_KINDS)}, but is {stated!r}; choose one of them"
        )
    found, why = recognised_kind(path)
    if stated == AUTO:
        if found is None:
            raise BadInput(
                f"a TAEHV's kind must be known, but neither digest nor name of {path.name} tells it, and its "
                f"tensors cannot; state it: --tae-kind {' or '.join(TAE_KINDS)}, in a node the widget tae_kind"
            )
        return found
    if found not in (None, stated):
        raise BadInput(
            f"{path.name} must be of the stated kind {stated}, but is {found} by its {why}; state {found} or "
            f"{AUTO}, or give another file"
        )
    return stated


def recognised_kind(path: Path) -> tuple[TaeKind | None, Literal["digest", "name", ""]]:
    """Return the kind of a file, and what tells it; None if nothing does. A digest outweighs a name."""
    by_digest = _kind_by_digest(path)
    if by_digest:
        return by_digest, "digest"
    named: set[TaeKind] = {"lighttaew2_1" if light else "taew2_1" for light in _NAMED.findall(path.name)}
    return (named.pop(), "name") if len(named) == 1 else (None, "")


def _kind_by_digest(path: Path) -> TaeKind | None:
    """Only a file of a published length is read."""
    try:
        length = path.stat().st_size
        digests: dict[str, TaeKind] = {digest: kind for kind, (size, digest) in PUBLISHED.items() if size == length}
        return digests.get(hashlib.sha256(path.read_bytes()).hexdigest()) if digests else None
    except OSError:
        return None
