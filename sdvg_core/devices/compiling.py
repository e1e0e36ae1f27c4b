"""Compiled code: the modes to choose from, and whether they work here."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import SubprocessError
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..choices import CompileMode as CompileMode
from ..errors import BadInput, first_line

Result = TypeVar("Result")
Backend = str | Callable[..., Any]
INDUCTOR = "inductor"
"""torch's own compiler."""


def compiled(work: Callable[..., Result], backend: Backend = INDUCTOR) -> Callable[..., Result]:
    """Return `work` compiled as a whole, once per shape; it is an error if a part cannot be compiled."""
    return torch.compile(work, dynamic=False, fullgraph=True, backend=backend)


def own_copy(work: Callable[..., Result]) -> Callable[..., Result]:
    """Return a copy of a function, to be compiled for one use.

    The compiler gives up on a function, with an error, after compiling it a few times, and counts all uses
    together.
    """
    assert isinstance(work, FunctionType)
    return FunctionType(work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__)


def compiler_of(mode: CompileMode) -> Backend | None:
    """Return the compiler of a mode; None for `off`."""
    return None if mode == "off" else INDUCTOR


def check_compile(mode: CompileMode, device: torch.device) -> None:
    """Compile something small on the device. Raises `BadInput` if the mode does not work there."""
    if mode == "off":
        return
    try:
        compiled(_trial)(torch.ones(8, device=device))
    except (RuntimeError, SubprocessError) as error:
        raise BadInput(
            f"--compile {mode} needs a working compiler on {device}, but compiling failed ({first_line(error)}); "
            f"install {'triton' if device.type == 'cuda' else 'a C++ compiler'}, or turn compiling off"
        ) from error


def _trial(x: Tensor) -> Tensor:
    return torch.sin(x) * 2
