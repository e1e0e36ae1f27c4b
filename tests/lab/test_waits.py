"""How often the host waits for a GPU: counted on a pretended one, with the parts of the command line."""

import pytest
import waits

from sdvg_core.engine.types import FiniteChecks

MOST = 4
"""Waits of a block whose draft is scored and kept: latents, scores, one reading at its end, and pixels."""


@pytest.fixture(scope="module")
def found() -> waits.Found:
    return waits.count_waits("r=1")


def by_author(found: waits.Found, author: str) -> list[int]:
    blocks = zip(found.records, found.blocks, strict=True)
    return [sum(waited.values()) for record, waited in blocks if record.author == author]


def test_a_block_that_is_kept_waits_four_times_in_all_threads(found):
    """Catches a value that is read where it is made, and a copy from memory that is not pinned."""
    assert [record.author for record in found.records] == ["target", "drafter", "drafter", "target", "drafter"]
    in_threads = sum(found.elsewhere.values()) / len(found.blocks)
    assert in_threads == 1
    assert by_author(found, "drafter") == [MOST - 1] * 3
    assert by_author(found, "target") == [3, MOST], "the first one also reads the prompt, for its key"


def test_seconds_and_drift_are_there_all_the_same(found):
    assert all(record.seconds.draft > 0 and record.seconds.score > 0 for record in found.records[1:])
    assert [record.drift is None for record in found.records] == [True, True, False, False, False]


def test_one_wait_more_is_seen(monkeypatch):
    add = FiniteChecks.add

    def read_at_once(self, values, *place):
        assert bool(values.isfinite().all())
        add(self, values, *place)

    monkeypatch.setattr(FiniteChecks, "add", read_at_once)
    assert min(by_author(waits.count_waits("r=1"), "drafter")) >= MOST
