"""Get the published files of models: `doctor --fetch`, the one command that uses the network."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, escaped
from ..files.digest import sha256_of
from ..files.unfinished import bytes_there, check_free, unfinished_file
from ..weights.model_files import KnownFile, find_models, misplaced
from .hub import HubFile, download, licence_tag, look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A file to fetch. `goal`: where it will be."""

    known: KnownFile
    published: HubFile
    goal: Path

    @property
    def part(self) -> Path:
        """Where it grows, hidden: another content grows elsewhere."""
        content = hashlib.sha256(self.published.etag.encode()).hexdigest()[:16]
        return self.goal.with_name(f".{self.goal.name}.{content}.unfinished")

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return max(0, self.published.size - bytes_there(self.part))


def fetch_files(wanted: Sequence[KnownFile], models: Path, *, agreed: bool) -> None:
    """Show which files are missing in a folder of models, ask unless `agreed`, and fetch them."""
    orders = []
    for known, path in zip(wanted, find_models(models, wanted).values(), strict=True):
        remark = f"{path} is there already" if path else misplaced(models, known)
        if remark:
            print(escaped(f"{known.role:<14} {remark}"))
        else:
            orders.append(_order(known, models))
    _check_disks(orders)
    if orders and not (agreed or _agreed(sum(order.missing for order in orders))):
        print("nothing was fetched")
        return
    for order in orders:
        _fetch(order)


def _order(known: KnownFile, models: Path) -> Order:
    """Look a file up, and show where it is from, how large it is and under which licence."""
    base = models / "models" if (models / "models").is_dir() else models
    published = look_up(known.repository, known.path)
    order = Order(known=known, published=published, goal=base / known.folder / known.names[0])
    tag = licence_tag(known.repository)
    today = f"its card says {tag} today" if tag else "its card: not read"
    lines = (
        f"{known.role:<14} {order.goal}",
        f"{known.repository}, {known.path}, {_shown(published.size)}",
        f"licence: {known.licence or 'not read'}; {today}",
    )
    print(escaped(f"\n{'':<15}".join(lines)))
    return order


def _shown(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"


def _check_disks(orders: Sequence[Order]) -> None:
    """Raise `BadInput` if all files together do not fit on the disks that they go to."""
    needed: Counter[int] = Counter()
    for order in orders:
        folder = next(place for place in order.goal.absolute().parents if place.is_dir())
        disk = folder.stat().st_dev
        needed[disk] += order.missing
        check_free(folder, needed[disk])


def _agreed(size: int) -> bool:
    """Ask whether to fetch so many bytes. Raises `BadInput` where nobody can answer."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput("there is no terminal to ask in; add --yes if these sources and licences suit you")
    try:
        return input(f"Fetch {_shown(size)}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _fetch(order: Order) -> None:
    """Fetch a file and check it. Raises `BadInput` if it is not what the hub announced."""
    order.goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished_file(order.goal, order.part, order.published.size) as file:
            download(order.published, file)
            if order.published.sha256 not in (None, sha256_of(file)):
                file.truncate(0)
                fault = f"{order.goal.name} is not what the hub announced (SHA-256)"
                raise BadInput(f"{fault}; it was thrown away, so give the same command again")
    except KeyboardInterrupt:
        print("what was fetched is kept, hidden; the same command goes on", file=sys.stderr)
        raise
    checked = "SHA-256 compared" if order.published.sha256 else "the hub has no SHA-256 of it; size compared"
    print(escaped(f"{order.known.role:<14} fetched {order.goal} ({checked})"))
