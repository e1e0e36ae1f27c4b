"""The attention kernels there are to choose from. A package is imported when it is chosen, and not before.

All are exact but SageAttention, which rounds queries and keys to 8 bits: only who asks for it by name gets it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices.dtypes import dtype_name
from ..devices.execution import AUTO
from ..errors import BadInput, first_line

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
HALF = (torch.float16, torch.bfloat16)
AMPERE, HOPPER = (8, 0), (9, 0)
"""Compute capabilities of NVIDIA GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBackend:
    """An attention kernel: q `b l n d`, k and v `b m n d`, result `b l n d`; no mask, scaled by 1 / sqrt(d).

    `name`: what the report calls it. `note`: what a reader of the results must know; empty if it is exact.
    """

    name: str
    kernel: Kernel
    note: str = ""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""
        return self.kernel(q, k, v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a kernel asks for beside an NVIDIA GPU from Ampere on and half precision.

    `package`, `module`: what is installed and what is imported; empty if torch brings it. `widest`, `multiple`: of
    the channels of a head.
    """

    widest: int
    multiple: int = 1
    package: str = ""
    module: str = ""


NEEDS: Mapping[str, Needs] = {
    "sdpa": Needs(widest=0),  # runs anywhere
    "cudnn": Needs(widest=128, multiple=8),
    "flash": Needs(widest=256, package="flash-attn", module="flash_attn"),
    "sage": Needs(widest=128, package="sageattention", module="sageattention"),
}


def choose_attention(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionBackend:
    """Return a kernel by its name; `auto` is the best exact one for that device and model.

    Raises `BadInput` if one that was asked for is not installed, or cannot work there.
    """
    if name == AUTO:
        name = _best(device, dtype, head_dim)
    refusal = why_not(name, device=device, dtype=dtype, head_dim=head_dim)
    if refusal:
        raise BadInput(refusal)
    return BUILDERS[name]()


def why_not(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Return the refusal of a kernel, one sentence, or nothing if it should work. Imports nothing."""
    if name == "sdpa":
        return ""
    needs, use = NEEDS[name], "use --attention auto"
    if _capability(device) < AMPERE:
        return (
            f"expected an NVIDIA GPU from Ampere on (compute capability 8.0) for the attention {name}, but "
            f"{device} is none; {use}"
        )
    if dtype not in HALF:
        return (
            f"expected float16 or bfloat16 for the attention {name}, but the model is run in "
            f"{dtype_name(dtype)}; add --dtype bfloat16, or {use}"
        )
    if head_dim > needs.widest or head_dim % needs.multiple:
        shape = f", a multiple of {needs.multiple}," if needs.multiple > 1 else ""
        return (
            f"expected heads of at most {needs.widest} channels{shape} for the attention {name}, but the model's "
            f"have {head_dim}; {use}"
        )
    if needs.module and importlib.util.find_spec(needs.module) is None:
        return (
            f"expected the package {needs.package} for the attention {name}, but it is not installed; "
            f"pip install {needs.package}, or {use}"
        )
    return ""


def _best(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """cuDNN's kernel is written for Hopper and later, but not every torch takes it there by itself.

    On older GPUs torch's own choice is FlashAttention 2, which the package is too.
    """
    fits = not why_not("cudnn", device=device, dtype=dtype, head_dim=head_dim)
    wanted = _capability(device) >= HOPPER and torch.backends.cuda.cudnn_sdp_enabled()
    return "cudnn" if fits and wanted else "sdpa"


def _capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, (0, 0) of anything else."""
    if device.type != "cuda" or torch.version.hip:
        return 0, 0
    return torch.cuda.get_device_capability(device)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The kernel itself: torch's switch for it holds for all threads, and the VAE attends in ways it cannot."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0]
    return out.transpose(1, 2)


def _load_flash() -> AttentionBackend:
    kernel: Kernel = _imported("flash").flash_attn_func
    return AttentionBackend("flash", kernel)


def _load_sage() -> AttentionBackend:
    sageattn = _imported("sage").sageattn

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = sageattn(q, k, v, tensor_layout="NHD")
        return out

    return AttentionBackend(
        "sage", kernel, "SageAttention rounds queries and keys to 8 bits: latents differ from those of the others."
    )


def _imported(name: str) -> Any:
    needs = NEEDS[name]
    try:
        return importlib.import_module(needs.module)
    except (ImportError, OSError) as error:
        raise BadInput(
            f"expected the package {needs.package} for the attention {name}, but it cannot be imported "
            f"({first_line(error)}); install a build for this torch, or use --attention auto"
        ) from error


SDPA = AttentionBackend("sdpa", _sdpa)
BUILDERS: Mapping[str, Callable[[], AttentionBackend]] = {
    "sdpa": lambda: SDPA,
    "cudnn": lambda: AttentionBackend("cudnn", _cudnn),
    "flash": _load_flash,
    "sage": _load_sage,
}
