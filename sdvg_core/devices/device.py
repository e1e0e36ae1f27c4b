"""Devices, dtypes, threads and clocks, and their descriptions in reports and cache keys.

Defaults do not depend on the machine's load (a free GPU, idle cores): bits differ between devices and numbers of
threads, and a resumed run must find the same.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..errors import BadInput, count, first_line
from ..settings.execution import AUTO, DTYPE_NAMES, check_device_name
from ..settings.load import LoadOptions

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
"""Dtypes that a model can run in, by name."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""CPU quota of a container in microseconds, and its period; `max` for no limit."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
REPORTED = ("torch", "transformers", "diffusers", "safetensors")
ASYNCHRONOUS = ("cuda",)
"""Types of devices whose work is queued, so that reading a result waits."""
# Attention kernels; reported if they are installed.
OPTIONAL_PACKAGES = ("flash-attn", "sageattention")


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without `torch.`."""
    return str(dtype).removeprefix("torch.")


def pick_device(name: str, *, embedded: bool = False) -> str:
    """Return the device for a name; `auto` is CUDA if there is a GPU, else the CPU.

    `embedded`: `auto` is the CPU for the embedded models, so that their videos are the same on every machine.
    """
    if name != AUTO:
        return name
    return "cuda" if torch.cuda.is_available() and not embedded else "cpu"


@cache
def check_device(name: str) -> torch.device:
    """Return a device by name, with its index (cuda is cuda:0). Raises `BadInput` if this machine lacks it."""
    check_device_name(name)
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        fault = f"this machine has no device {name!r} ({first_line(error)[:120]})"
        raise BadInput(f"{fault}; use cpu, or cuda with an NVIDIA GPU and its build of torch") from error


def side_device(options: LoadOptions) -> torch.device:
    """Return the device of text encoder, VAE and scorer."""
    return check_device(options.device if options.side_device is None else options.side_device)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current one, as some kernels run there and not on their tensors' device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def device_clock(*devices: torch.device) -> Callable[[], Any]:
    """Return a clock whose readings subtract to seconds, or on a GPU to `Elapsed`.

    On one GPU a reading is an event, which does not wait. With several GPUs it waits for each, so that time is
    charged to the stage that used it.
    """
    accelerators = [device for device in dict.fromkeys(devices) if device.type in ASYNCHRONOUS]
    if not accelerators:
        return time.perf_counter
    if len(accelerators) == 1:
        return partial(Moment, accelerators[0])

    def synchronised() -> float:
        for device in accelerators:
            torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    return synchronised


class Moment:
    """An event in a GPU's current stream. The difference of two is `Elapsed`."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(torch.cuda.current_stream(device))

    def __sub__(self, earlier: Moment) -> Elapsed:
        return Elapsed(((earlier.event, self.event),))


@dataclass(frozen=True, slots=True, eq=False)
class Elapsed:
    """A sum of seconds and of differences of moments. `float()` waits for moments that are still to come."""

    spans: tuple[tuple[Any, Any], ...]
    seconds: float = 0.0

    def __add__(self, other: Elapsed | float) -> Elapsed:
        if isinstance(other, Elapsed):
            return Elapsed(self.spans + other.spans, self.seconds + other.seconds)
        return Elapsed(self.spans, self.seconds + other)

    __radd__ = __add__

    def __float__(self) -> float:
        seconds = self.seconds
        for begin, end in self.spans:
            if not end.query():
                end.synchronize()
            seconds += begin.elapsed_time(end) / 1000
        return seconds


def begin_upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting; later work there comes after the copy."""
    if device.type not in ASYNCHRONOUS or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@contextmanager
def resolved_threads(*, embedded: bool = False) -> Iterator[None]:
    """Limit torch's threads inside the `with` block to the CPUs of this process, or to 1 for the embedded models.

    OMP_NUM_THREADS or MKL_NUM_THREADS take precedence. `embedded`: the tensors are too small to share.
    """
    before = torch.get_num_threads()
    if not any(os.environ.get(name) for name in THREAD_VARIABLES):
        torch.set_num_threads(1 if embedded else min(before, cpu_quota()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_quota() -> int:
    """Return the number of CPUs that a container may use, rounded up, or those of the machine without a limit.

    torch does not see the limit, and threads for every CPU of a large host would wait for each other.
    """
    cpus = os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return cpus if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # not Linux, or another version of control groups
        return cpus


def device_line(device: str, dtype: str | None, threads: int | None = None) -> str:
    """Describe a device in a line: `device: cuda:0 (NVIDIA H100), bfloat16`.

    `dtype`: of the transformers, None for the files' own. `threads`: of a CPU, None for torch's.
    Raises `BadInput` if this machine lacks it.
    """
    checked = check_device(device)
    stored = dtype or "dtype as stored"
    if checked.type == "cuda":
        return f"device: {checked} ({torch.cuda.get_device_name(checked)}), {stored}"
    threads = threads or torch.get_num_threads()
    return f"device: {checked} ({processor()}), {stored}, {count(threads, 'thread')}"


def versions_on(device: str) -> dict[str, str]:
    """Return the versions of packages and the device's name, for a report."""
    packages = {name: package_version(name) or "not installed" for name in REPORTED}
    packages |= {name: installed for name in OPTIONAL_PACKAGES if (installed := package_version(name))}
    on = torch.device(device)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else processor()
    return {"sdvg": __version__, "python": platform.python_version(), **packages, "device": f"{device}: {name}"}


@cache
def package_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return the processor's name or architecture."""
    return platform.processor() or platform.machine()


def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, or (0, 0) for anything else."""
    if device.type != "cuda" or torch.version.hip:
        return 0, 0
    return torch.cuda.get_device_capability(device)


def arithmetic_on(device: torch.device) -> dict[str, str]:
    """Return the settings and versions, by name, that can change the bits of a result on a device."""
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
