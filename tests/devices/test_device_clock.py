"""The clock that seconds are booked by."""

from __future__ import annotations

import time

import pytest
import torch

from sdvg_core.devices.device import device_clock

FIRST, SECOND, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


@pytest.fixture
def waited_for(monkeypatch) -> list[torch.device]:
    """The devices whose streams were waited for, in order."""
    found = []

    class Stream:
        def __init__(self, device):
            self.synchronize = lambda: found.append(device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return found


def test_it_waits_for_every_device_once_before_it_looks(waited_for):
    """Catches decoding on a device of its own that is booked as scoring, which waits for it."""
    clock = device_clock(FIRST, SECOND, FIRST, CPU)
    assert waited_for == []
    began = time.perf_counter()
    assert began <= clock() <= time.perf_counter()
    assert waited_for == [FIRST, SECOND]


def test_on_a_cpu_there_is_nothing_to_wait_for(waited_for):
    assert device_clock(CPU, CPU) is time.perf_counter
    device_clock(CPU)()
    assert waited_for == []
