"""The progress of many videos: a line for every video, or on a terminal a line for every worker."""

from __future__ import annotations

import io

import pytest
from tiny import make_engine, run, scripted

from sdvg_core.report.crowd import CrowdBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def records():
    return [emitted.record for emitted in run(make_engine(), scripted("ra"), blocks=2)]


def test_without_a_terminal_there_is_a_line_for_every_video_with_the_time_left(records):
    """Four blocks in all; three seconds for the first three. Catches: blocks of a video under way not counted."""
    stream, clock = io.StringIO(), Clock()
    bar = CrowdBar(2, 2, stream, clock=clock)
    bar.block(0, 1, records[0])
    bar.block(1, 2, records[0])
    clock.now = 3.0
    bar.block(0, 1, records[1])
    bar.ended(0, 1, "finished: Fa, 3.0 s", failed=False)
    bar.again(1, 2, "a worker ended with code -9")
    bar.block(0, 2, records[0])
    bar.ended(0, 2, "failed: no room", failed=True)
    bar.close()
    assert stream.getvalue().splitlines() == [
        "video 0001 finished: Fa, 3.0 s (worker 1); 1/2 videos, 0:01 left",
        "video 0002 is tried once more: a worker ended with code -9 (worker 2)",
        "video 0002 failed: no room (worker 1); 2/2 videos, 1 failed, 0:00 left",
    ]


def test_on_a_terminal_there_is_a_line_for_every_worker_and_one_for_all(records):
    stream = Terminal()
    bar = CrowdBar(2, 2, stream)
    bar.block(1, 1, records[0])
    bar.block(0, 2, records[0])
    bar.block(0, 2, records[1])
    bar.ended(0, 2, "finished: Fa, 3.0 s", failed=False)
    bar.close()
    shown = stream.getvalue()
    for line in ("worker 2: video 0001, F.", "worker 1: video 0002, Fa", "worker 1: waiting", "1/2 videos"):
        assert line in shown, line
