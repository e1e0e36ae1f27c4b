"""What the runs of this process keep for later ones: one store for all samplers."""

from __future__ import annotations

from ...sdvg_core.engine.keys import Identities
from ...sdvg_core.engine.reuse import Reuse
from ...sdvg_core.engine.store import GIGABYTE, Store

_STORE = Store(0)


def begin_reuse(limit: int, identities: Identities) -> Reuse | None:
    """Return what a run may use again; None if its limit is 0 bytes, which also forgets everything.

    `limit`: in bytes of host memory, for everything that is kept.
    """
    _STORE.begin_run(limit)
    return Reuse(store=_STORE, identities=identities) if limit else None


def store_notes() -> tuple[str, ...]:
    """Say what the newest run pushed out of the store, and what of its own found no room there."""
    limit = f"{_STORE.limit / GIGABYTE:g} GB"
    notes = []
    if _STORE.forgotten:
        notes.append(
            f"The {limit} for re-use are full: {_STORE.forgotten} results of the oldest runs were dropped."
        )
    if _STORE.refused:
        notes.append(
            f"{_STORE.refused} results of this run did not fit into the {limit} for re-use; the next run makes them "
            "again."
        )
    return tuple(notes) if _STORE.limit else ()
