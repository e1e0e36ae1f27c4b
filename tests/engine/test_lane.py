"""A lane on a CUDA device, with stand-ins for the device: when it begins, and when it is done."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from sdvg_core.engine.lane import Lane, Unwanted


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What streams are told, in order."""
    heard: list[str] = []

    class Stream:
        device = torch.device("cuda", 0)

        def __init__(self, device=None) -> None:
            pass

        def wait_stream(self, other) -> None:
            heard.append("wait for the caller")

        def synchronize(self) -> None:
            heard.append("finish")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return heard


def test_what_a_lane_made_stays_the_callers_until_the_callers_stream_has_read_it(told):
    """Catches: memory given back to the lane while the caller still reads it."""

    class Made:
        def __init__(self, is_cuda: bool) -> None:
            self.is_cuda, self.kept_for = is_cuda, []

        def record_stream(self, stream) -> None:
            self.kept_for.append(type(stream).__name__)

    on_device, on_host = Made(True), Made(False)
    lane = Lane(torch.device("cuda", 0), "test")
    lane.hand_over([on_device, on_host])
    lane.close()
    assert (on_device.kept_for, on_host.kept_for) == (["Stream"], [])


@pytest.mark.parametrize("error", [None, Unwanted(), RuntimeError("broken")])
def test_nothing_is_left_to_do_on_the_device_when_work_has_ended_however_it_ended(error, told):
    """Catches a block that nobody wants still being made while the next video begins."""

    def work() -> int:
        told.append("work")
        if error is not None:
            raise error
        return 5

    lane = Lane(torch.device("cuda", 0), "test")
    done = lane.submit(work)
    assert done.exception() is error
    lane.close()
    assert told == ["wait for the caller", "work", "finish"]
    assert error is not None or done.result() == 5
