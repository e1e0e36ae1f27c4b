"""What a command runs on without being told: the device, and the threads of a CPU.

Neither may hang on what the machine is doing at the moment: bits differ between devices and between numbers of
threads, and a resumed run must find those it began with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..choices import AUTO
from .device import check_device
from .environment import processor

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use of the CPUs, in microseconds per period; `max` is all."""
STATED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def pick_device(name: str, *, embedded: bool = False) -> str:
    """Return the device that was named; of `auto`, CUDA if there is a GPU, else the CPU.

    `embedded`: the models are the embedded set, whose `auto` is the CPU: one core is enough for them, and their
    videos are then the same with a GPU and without.
    """
    if name != AUTO:
        return name
    return "cuda" if torch.cuda.is_available() and not embedded else "cpu"


@contextmanager
def settled_threads(*, embedded: bool = False) -> Iterator[None]:
    """Inside the block, let torch use as many CPU threads as there are CPUs for this process.

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
    everything = os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return everything if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no Linux, or another version of control groups
        return everything


def device_line(device: str, dtype: str | None, threads: int | None = None) -> str:
    """Return what a run is made on, in a line: `device: cuda:0 (NVIDIA H100), bfloat16`.

    `dtype`: of the transformers, None for the files' own. `threads`: of a CPU, None for torch's.
    Raises `BadInput` if there is no such device.
    """
    found, stored = check_device(device), dtype or "dtype as stored"
    if found.type == "cuda":
        return f"device: {found} ({torch.cuda.get_device_name(found)}), {stored}"
    threads = threads or torch.get_num_threads()
    return f"device: {found} ({processor()}), {stored}, {threads} thread{'s' if threads > 1 else ''}"
