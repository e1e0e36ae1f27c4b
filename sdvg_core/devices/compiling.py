"""Compiled code: what there is to choose from, and whether it works here."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import SubprocessError
from types import FunctionType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ..errors import BadInput, first_line

CompileMode = Literal["off", "default"]
"""`default`: the stages around a layer's attentions, and the VAE's decoder."""

Result = TypeVar("Result")
Backend = str | Callable[..., Any]
INDUCTOR = "inductor"
"""torch's own compiler."""


def compiled(work: Callable[..., Result], backend: Backend = INDUCTOR) -> Callable[..., Result]:
    """Return `work` compiled anew for every shape it meets, and whole: what cannot be compiled is an error."""
    return torch.compile(work, dynamic=False, fullgraph=True, backend=backend)


def own_copy(work: Callable[..., Result]) -> Callable[..., Result]:
    """Return the same function as another one, to be compiled for one use.

    The compiler gives a function up, with an error, when it was compiled a few times, and counts all uses together.
    """
    assert isinstance(work, FunctionType)
    return FunctionType(work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__)


def compiler_of(mode: CompileMode) -> Backend | None:
    """Return what compiles in a mode; None if nothing is to be."""
    return None if mode == "off" else INDUCTOR


def check_compile(mode: CompileMode, device: torch.device) -> None:
    """Compile something small on the device. Raises `BadInput` if a mode that was asked for cannot be had there."""
    if mode == "off":
        return
    try:
        compiled(_trial)(torch.ones(8, device=device))
    except (RuntimeError, SubprocessError) as error:
        raise BadInput(
            f"expected a compiler for --compile {mode} on {device}, but compiling failed ({first_line(error)}); "
            f"install {'triton' if device.type == 'cuda' else 'a C++ compiler'}, or leave compiling off"
        ) from error


def _trial(x: Tensor) -> Tensor:
    return torch.sin(x) * 2
