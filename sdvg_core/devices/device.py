"""Devices by name, the one that is current, and clocks that wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from ..errors import BadInput

KINDS = ("cpu", "cuda")
"""Of devices that are known to run everything here; torch names a dozen more."""


def check_device(name: str) -> torch.device:
    """Return a device by its name, with its number: cuda is cuda:0. Raises `BadInput` if there is none here."""
    if name.partition(":")[0] not in KINDS:
        raise BadInput(f"a device is cpu, cuda, or one of several such as cuda:1, but got {name!r:.60}; use cpu")
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(
            f"this machine has no device {name!r} ({str(error).splitlines()[0][:120]}); use cpu, or cuda with an "
            "NVIDIA GPU and its build of torch"
        ) from error


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current one: some kernels run there, whatever device their tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def device_clock(*devices: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that synchronises the devices first, so time is charged to the stage that used it.

    It does not wait for what other threads do on them.
    """
    accelerators = tuple(device for device in dict.fromkeys(devices) if device.type == "cuda")
    if not accelerators:
        return time.perf_counter

    def synchronised() -> float:
        for device in accelerators:
            torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    return synchronised
