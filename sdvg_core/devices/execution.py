"""How a run is executed: settings that change its speed, its memory or its rounding, but not the request.

torch is imported only where it is used, so that the command line can list the choices at once.
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
"""The dtype of the scorer, whose scores bfloat16 would move by 0.04.

`auto` is float16 on CUDA, which takes a third of the time, and float32 elsewhere.
"""
CompileMode = Literal["off", "default"]
"""`default`: the stages around a layer's attentions, and the VAE's decoder."""
Attention = Literal["auto", "sdpa", "cudnn", "flash", "sage"]
"""The transformers' attention kernel; `auto` is the best exact one."""
KvDtype = Literal["auto", "float8_e4m3fn"]
"""The dtype of the K/V cache; `auto` is that of activations."""
WeightDtype = Literal["default", "fp8_e4m3fn"]
"""The dtype of linear weights; the default is as stored. The names are ComfyUI's."""
VaeLayers = Literal["diffusers", "planes"]
"""How the VAE's layers are laid out: diffusers' own, or as 2-D ones, which is faster. They are equal to rounding.

Seconds of one CPU core (torch 2.13.0, float32) as planes and diffusers' own: a block at width 8
and 64x64 0.08, 0.28; at width 16 and 192x128 0.91, 4.3; at width 32 and 96x64 0.69, 1.7; a frame at the released
width 96 and 96x64 1.48, 1.67. Nine blocks of full size take an H100 1.67 s, as diffusers' own 2.70 s.
"""

WITHOUT_FLOAT64 = ("mps", "xpu", "privateuseone")
"""Types of devices that compute no float64: Apple's, Intel's (few can) and DirectML's, as ComfyUI has it."""

Result = TypeVar("Result")
Backend = str | Callable[..., Any]
INDUCTOR = "inductor"
"""torch's own compiler."""


def float64_device(device: torch.device) -> torch.device | str:
    """Return where float64 is computed for tensors of a device: there, or on the CPU where it has none."""
    return "cpu" if device.type in WITHOUT_FLOAT64 else device


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How models are run. Raises `BadInput` for a choice that does not exist.

    `compile`: what of the transformers and of the VAE's decoder is compiled.
    """

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
        """Return the dtype of keys and values that are computed in `dtype`."""
        return self.kv_dtype if self.kv_fp8 else dtype


def resolved_reward_dtype(asked: RewardDtype, device: str) -> Dtype:
    """Return the requested dtype of a scorer; for `auto`, the one that suits the device named."""
    if asked != AUTO:
        return asked
    return "float16" if device.startswith("cuda") else "float32"


def check_device_name(name: str) -> None:
    """Raise `BadInput` unless a name is that of a device that some machine may have."""
    if not re.fullmatch("cpu|cuda(:[0-9]{1,3})?", name):
        raise BadInput(f"there is no device {name!r:.60}; use cpu, cuda, or one of several such as cuda:1")


def compiled(fn: Callable[..., Result], backend: Backend = INDUCTOR) -> Callable[..., Result]:
    """Return `fn` compiled as a whole, once per shape; it is an error if a part cannot be compiled."""
    import torch

    return torch.compile(fn, dynamic=False, fullgraph=True, backend=backend)


def copy_function(fn: Callable[..., Result]) -> Callable[..., Result]:
    """Return a copy of a function, to be compiled for one use.

    The compiler gives up on a function, with an error, after compiling it a few times, and counts all uses
    together.
    """
    assert isinstance(fn, FunctionType)
    return FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__)


def compiler_of(mode: CompileMode) -> Backend | None:
    """Return the compiler of a mode; None for `off`."""
    return None if mode == "off" else INDUCTOR


def check_compile(mode: CompileMode, device: torch.device, instead: str = "use --compile off") -> None:
    """Compile something small on the device. Raises `BadInput`, with what to do instead, if that does not work."""
    import torch

    if mode == "off":
        return
    try:
        compiled(_trial)(torch.ones(8, device=device))
    except Exception as error:  # a compiler that cannot be started fails in its own ways
        missing = "triton" if device.type == "cuda" else "a C++ compiler"
        fault = f"compiling failed ({first_line(error)})"
        raise BadInput(f"{fault}; install {missing}, or {instead}") from error


def _trial(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2
