"""Compile functions for a device, and find one that computes in float64."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

from ..errors import BadInput, first_line
from ..settings.execution import CompileMode

WITHOUT_FLOAT64 = ("mps", "xpu", "privateuseone")
"""Types of devices without float64, as in ComfyUI: Apple's, Intel's (few have it) and DirectML's."""

_Result = TypeVar("_Result")
Backend = str | Callable[..., Any]
INDUCTOR = "inductor"
"""torch's own compiler."""


def float64_device(device: torch.device) -> torch.device | str:
    """Return the device that computes float64 for tensors of a device: itself, or the CPU if it cannot."""
    return "cpu" if device.type in WITHOUT_FLOAT64 else device


def compiled(fn: Callable[..., _Result], backend: Backend = INDUCTOR) -> Callable[..., _Result]:
    """Return `fn` compiled as one graph, once per shape. A call raises if a part cannot be compiled."""
    return torch.compile(fn, dynamic=False, fullgraph=True, backend=backend)


def copy_function(fn: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return a copy of a function to compile for one use.

    The compiler counts recompilations per function, over all uses, and fails after a few.
    """
    assert isinstance(fn, FunctionType)
    return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__)


def compiler_of(mode: CompileMode) -> Backend | None:
    """Return the compiler of a mode, or None for `off`."""
    return None if mode == "off" else INDUCTOR


def check_compile(mode: CompileMode, device: torch.device, instead: str = "use --compile off") -> None:
    """Compile a trial function on a device. Raises `BadInput` if that fails. `instead`: the remedy without it."""
    if mode == "off":
        return
    try:
        compiled(_trial)(torch.ones(8, device=device))
    except Exception as error:  # a missing compiler can fail in any way
        missing = "triton" if device.type == "cuda" else "a C++ compiler"
        fault = f"compiling failed ({first_line(error)})"
        raise BadInput(f"{fault}; install {missing}, or {instead}") from error


def _trial(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2
