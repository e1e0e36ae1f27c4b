"""Working ahead with passes that play on fixed memory, and the numbers of a run that does both."""

from __future__ import annotations

import pytest
from overlap_parts import ENGINE, EagerLane, run_ahead, same
from recorded import STEPS, Recorder, engine_with
from tiny import make_engine, run, scripted

from sdvg_core.causal_wan.passes import RecordedPasses

OPTIONS = {"recompute": {}, "incremental": {name: value for name, value in ENGINE.items() if name != "policy"}}
ROUTES = ["raaaaaaaa", "rrarraarr", "rarararar"]
# A draft that waits for a picture of the block before cannot be made to its end beforehand.
CASES = [("recompute", False), ("incremental", False), ("incremental", True)]


@pytest.mark.parametrize("policy, to_the_end", CASES)
@pytest.mark.parametrize("pattern", ROUTES)
def test_a_block_begun_ahead_is_played_from_recordings_to_the_same_bits(policy, pattern, to_the_end, monkeypatch):
    """Catches: a result that the next play writes over while it is decoded; a cache that is kept for the next video
    and was not brought back after a wrong guess."""
    if to_the_end:
        monkeypatch.setattr("sdvg_core.engine.overlap.Lane", EagerLane)
    undo = {"undo": True} if policy == "incremental" else {}
    engine = engine_with(policy, lambda: RecordedPasses(Recorder()), **OPTIONS[policy], **undo)
    expected = run(make_engine(policy, **OPTIONS[policy], schedule=STEPS), scripted(pattern))
    for _ in range(2):
        same(run_ahead(engine, scripted(pattern)), expected)
