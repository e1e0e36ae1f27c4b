"""Where a run computes: devices, dtypes, threads and clocks, and what reports and cache keys say about them.

Defaults must not depend on what the machine is doing at the moment: bits differ between devices and between numbers
of threads, and a resumed run must find those it began with.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import BadInput, first_line
from .execution import AUTO, DTYPE_NAMES, check_device_name

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
"""The dtypes that a model can run in, by name."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU per period that a container may use; `max` is all."""
STATED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
REPORTED = ("torch", "transformers", "diffusers", "safetensors")
ASYNCHRONOUS = ("cuda",)
"""Types of devices whose work is queued, so that asking for a result waits."""
# Attention kernels that a run may use; named if they are installed.
OPTIONAL = ("flash-attn", "sageattention")


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of any dtype, as options, reports and refusals spell it."""
    return str(dtype).removeprefix("torch.")


def pick_device(name: str, *, embedded: bool = False) -> str:
    """Return the device named; for `auto`, CUDA if there is a GPU, else the CPU.

    `embedded`: the models are the embedded set, whose `auto` is the CPU: one core is enough for them, and their
    videos are then the same with a GPU and without.
    """
    if name != AUTO:
        return name
    return "cuda" if torch.cuda.is_available() and not embedded else "cpu"


@cache
def check_device(name: str) -> torch.device:
    """Return a device by its name, with its number: cuda is cuda:0. Raises `BadInput` if it does not exist here."""
    check_device_name(name)
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        fault = f"this machine has no device {name!r} ({first_line(error)[:120]})"
        raise BadInput(f"{fault}; use cpu, or cuda with an NVIDIA GPU and its build of torch") from error


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current one: some kernels run there, not on their tensors' device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def device_clock(*devices: torch.device) -> Callable[[], Any]:
    """Return a clock whose readings are subtracted to seconds: numbers, or on a GPU `Elapsed` (see there).

    On one GPU a reading is an event in its work, for which nobody waits. With several it waits for each of them, so
    that time is charged to the stage that used it; not for what other threads do there.
    """
    accelerators = [device for device in dict.fromkeys(devices) if device.type in ASYNCHRONOUS]
    if len(accelerators) == 1:
        return partial(Moment, accelerators[0])
    return waiting_clock(*accelerators)


def waiting_clock(*devices: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that waits for the devices first."""
    accelerators = tuple(device for device in dict.fromkeys(devices) if device.type in ASYNCHRONOUS)
    if not accelerators:
        return time.perf_counter

    def synchronised() -> float:
        for device in accelerators:
            torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    return synchronised


class Moment:
    """A point in the work of a GPU's current stream. The difference of two is `Elapsed`."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(torch.cuda.current_stream(device))

    def __sub__(self, earlier: Moment) -> Elapsed:
        return Elapsed(((1, earlier.event, self.event),))


class Elapsed:
    """Seconds between moments, added and subtracted. Only `float()` waits, for moments that have not come yet."""

    def __init__(self, spans: tuple[tuple[int, Any, Any], ...], known: float = 0.0) -> None:
        self._spans = spans
        self._known = known

    def __add__(self, other: Elapsed | float) -> Elapsed:
        if isinstance(other, Elapsed):
            return Elapsed(self._spans + other._spans, self._known + other._known)
        return Elapsed(self._spans, self._known + other)

    __radd__ = __add__

    def __neg__(self) -> Elapsed:
        return Elapsed(tuple((-sign, begin, end) for sign, begin, end in self._spans), -self._known)

    def __sub__(self, other: Elapsed | float) -> Elapsed:
        return self + -other

    def __float__(self) -> float:
        seconds = self._known
        for sign, begin, end in self._spans:
            if not end.query():
                end.synchronize()
            seconds += sign * begin.elapsed_time(end) / 1000
        return seconds


def begin_upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on a device, without waiting: later work there comes after the copy."""
    if device.type not in ASYNCHRONOUS or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def resolved_threads(*, embedded: bool = False) -> Iterator[None]:
    """Within the `with` block, let torch use as many CPU threads as there are CPUs for this process.

    `embedded`: the models are the embedded set: one thread, as their tensors are too small to share. What a user
    states in OMP_NUM_THREADS or MKL_NUM_THREADS stays.
    """
    before = torch.get_num_threads()
    if not any(os.environ.get(name) for name in STATED):
        torch.set_num_threads(1 if embedded else min(before, cpu_quota()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_quota() -> int:
    """Return how many CPUs a container may use, rounded up; without a limit, those of the machine.

    torch does not see the limit: with a thread for every CPU of a large host, threads wait for one another.
    """
    cpus = os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return cpus if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # not Linux, or another version of control groups
        return cpus


def device_line(device: str, dtype: str | None, threads: int | None = None) -> str:
    """Describe the device of a run in a line: `device: cuda:0 (NVIDIA H100), bfloat16`.

    `dtype`: of the transformers, None for the files' own. `threads`: of a CPU, None for torch's.
    Raises `BadInput` if this machine lacks it.
    """
    checked = check_device(device)
    stored = dtype or "dtype as stored"
    if checked.type == "cuda":
        return f"device: {checked} ({torch.cuda.get_device_name(checked)}), {stored}"
    threads = threads or torch.get_num_threads()
    return f"device: {checked} ({processor()}), {stored}, {threads} thread{'s' if threads > 1 else ''}"


def versions_on(device: str) -> dict[str, str]:
    """Return the versions for a report, and the device's name."""
    packages = {name: package_version(name) or "not installed" for name in REPORTED}
    packages |= {name: installed for name in OPTIONAL if (installed := package_version(name))}
    on = torch.device(device)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else processor()
    return {"sdvg": __version__, "python": platform.python_version(), **packages, "device": f"{device}: {name}"}


@cache
def package_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return the processor's name, if the system knows it."""
    return platform.processor() or platform.machine()


def arithmetic_on(device: torch.device) -> dict[str, str]:
    """Return, by name, everything about a device and its libraries that can change the bits of a result."""
    settings = {
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }
    if device.type == "cpu":
        settings |= {
            "threads": str(torch.get_num_threads()),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    if device.type == "cuda":
        settings |= {
            "cuda": str(torch.version.cuda),
            "cudnn": f"{torch.backends.cudnn.version()}, tf32 {torch.backends.cudnn.allow_tf32}",
        }
    return {**settings, **{f"version of {name}": value for name, value in versions_on(str(device)).items()}}
