"""Faults while two things are at work at once: the newest block's decoder and the next block's model."""

from dataclasses import replace

import pytest
from faulty import FINAL, Trap, footprint, make_loaded, make_video, names, quick, result

from sdvg_core.devices.execution import Execution

ERRORS = (RuntimeError, KeyboardInterrupt)
ALL = [pytest.param(policy, 13, marks=pytest.mark.exhaustive) for policy in ("recompute", "incremental")]


@pytest.mark.heavy
@pytest.mark.parametrize("policy, step", [("recompute", 29), ("incremental", 27), *ALL])
def test_a_fault_in_either_thread_does_no_harm(policy, step, tmp_path):
    """Which call is the n-th is a matter of chance here, so that every run meets others."""
    heard = Trap()
    undo = {"undo": 1} if policy == "incremental" else {}
    loaded = make_loaded(policy, lambda kind: heard(f"progress, {kind}"), **undo)
    loaded = replace(loaded, parts=replace(loaded.parts, execution=Execution(overlap=True)))
    with quick():
        heard = all_calls = Trap()
        with heard.set():
            fresh = result(tmp_path / "fresh", make_video(loaded, tmp_path / "fresh"))
        before = footprint()
        # A run in which guesses are called off early makes fewer calls.
        for number in range(1, len(all_calls.stages) * 2 // 3, step):
            folder, error = tmp_path / str(number), ERRORS[number % 2]
            heard = Trap(number, error())
            with heard.set():
                try:
                    make_video(loaded, folder)
                    raise AssertionError(f"call {number} was to raise {error.__name__}")
                except error:
                    pass
            after = footprint()
            assert all(after[what] <= before[what] for what in after), (number, before, after)
            assert not set(FINAL) & set(names(folder)), number
            assert result(folder, make_video(loaded, folder, resume=True)) == fresh, number
            assert names(folder) == sorted(FINAL), number
