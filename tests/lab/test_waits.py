"""How often the host waits for a GPU: counted on a pretended one, with the parts of the command line."""

import pytest
import waits

from sdvg_core.engine.types import FiniteChecks

MOST = 4
"""Waits of a block whose draft is scored and kept: latents, scores, one reading at its end, and pixels."""


@pytest.fixture(scope="module")
def waited() -> waits.Waits:
    return waits.count_waits("r=1")


def waits_of(waited: waits.Waits, author: str) -> list[int]:
    """Return the waits of the main thread in each block of an author."""
    blocks = zip(waited.records, waited.blocks, strict=True)
    return [sum(reasons.values()) for record, reasons in blocks if record.author == author]


def test_kept_draft_waits_four_times(waited):
    """In all threads. Catches a value that is read where it is made, and a copy from memory that is not pinned."""
    assert [record.author for record in waited.records] == ["target", "drafter", "drafter", "target", "drafter"]
    in_threads = sum(waited.elsewhere.values()) / len(waited.blocks)
    assert in_threads == 1
    assert waits_of(waited, "drafter") == [MOST - 1] * 3
    assert waits_of(waited, "target") == [3, MOST], "the first one also reads the prompt, for its key"


def test_seconds_and_drift_are_reported(waited):
    """Catches: waits saved by measuring nothing."""
    assert all(record.seconds.draft > 0 and record.seconds.score > 0 for record in waited.records[1:])
    assert [record.drift is None for record in waited.records] == [True, True, False, False, False]


def test_added_wait_is_counted(monkeypatch):
    add = FiniteChecks.add

    def read_at_once(self, values, *details):
        assert bool(values.isfinite().all())
        add(self, values, *details)

    monkeypatch.setattr(FiniteChecks, "add", read_at_once)
    assert min(waits_of(waits.count_waits("r=1", length=3), "drafter")) >= MOST
