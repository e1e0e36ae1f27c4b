"""Execution settings of a run (speed, memory, rounding), and compilation.

torch is imported only where it is used, because the command line imports this file for its help.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ..errors import BadInput, first_line
from ..settings import check_fields, setting

if TYPE_CHECKING:
    import torch

AUTO: Literal["auto"] = "auto"
Dtype = Literal["float32", "float16", "bfloat16"]
DTYPE_NAMES = get_args(Dtype)
TextDtype = Literal["bfloat16", "float32"]
"""The dtype of the text encoder, which overflows in float16."""
RewardDtype = Literal["auto", "float32", "float16"]
"""The dtype of the scorer; `auto` is float16 on CUDA, else float32. bfloat16 would shift scores by 0.04."""
CompileMode = Literal["off", "default"]
"""`default` compiles the stages around a layer's attentions, and the VAE's decoder."""
Attention = Literal["auto", "sdpa", "cudnn", "flash", "sage"]
"""The transformers' attention kernel; `auto` is the best exact one."""
KvDtype = Literal["auto", "float8_e4m3fn"]
"""The dtype of the K/V cache; `auto` is that of activations."""
WeightDtype = Literal["default", "fp8_e4m3fn", "fp8_e4m3fn_fast"]
"""The dtype of linear weights; the default is as stored. `fast` multiplies in fp8 too. The names are ComfyUI's."""
VaeLayers = Literal["diffusers", "planes"]
"""The VAE's layers: diffusers' own, or 2-D ones, which are faster and equal up to rounding.

Nine blocks of full size take an H100 1.67 s as planes, and 2.70 s as diffusers' own (benchmarks/LOG.md).
"""

WITHOUT_FLOAT64 = ("mps", "xpu", "privateuseone")
"""Types of devices without float64, as in ComfyUI: Apple's, Intel's (few have it) and DirectML's."""

Result = TypeVar("Result")
Backend = str | Callable[..., Any]
INDUCTOR = "inductor"
"""torch's own compiler."""


def float64_device(device: torch.device) -> torch.device | str:
    """Return the device that computes float64 for tensors of a device: itself, or the CPU if it cannot."""
    return "cpu" if device.type in WITHOUT_FLOAT64 else device


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Execution settings of models. Raises `BadInput` for an unknown choice."""

    attention: Attention = setting(
        AUTO, help="kernel for drafter and target; auto takes the best exact one, sage rounds to 8 bits"
    )
    kv_dtype: KvDtype = setting(
        AUTO,
        help="of the K/V cache: as computed, or rounded to 8 bits, half the bytes of bfloat16",
        widget={"advanced": True, "optional": True},
    )
    vae_layers: VaeLayers = "planes"
    compile: CompileMode = setting("off", help="default compiles the transformers and the VAE decoder")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def kv_fp8(self) -> bool:
        """True if keys and values are kept in float8_e4m3fn."""
        return self.kv_dtype != AUTO

    def kept_in(self, dtype: str) -> str:
        """Return the dtype that keys and values computed in `dtype` are stored in."""
        return self.kv_dtype if self.kv_fp8 else dtype


def check_device_name(name: str) -> None:
    """Raise `BadInput` unless a name has the form of a device's."""
    if not re.fullmatch("cpu|cuda(:[0-9]{1,3})?", name):
        raise BadInput(f"there is no device {name!r:.60}; use cpu, cuda, or one of several such as cuda:1")


def compiled(fn: Callable[..., Result], backend: Backend = INDUCTOR) -> Callable[..., Result]:
    """Return `fn` compiled as one graph, once per shape. A call raises if a part cannot be compiled."""
    import torch

    return torch.compile(fn, dynamic=False, fullgraph=True, backend=backend)


def copy_function(fn: Callable[..., Result]) -> Callable[..., Result]:
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
    import torch

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
