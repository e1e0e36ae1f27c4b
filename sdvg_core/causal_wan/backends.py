"""The attention kernels to choose from. A package is imported only when its kernel is chosen.

All are exact but SageAttention, which rounds queries and keys to 8 bits and so is only used if asked for by name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices.device import dtype_name
from ..devices.execution import AUTO
from ..errors import BadInput, first_line

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
HALF = (torch.float16, torch.bfloat16)
# Compute capabilities of NVIDIA GPUs.
AMPERE = (8, 0)
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBackend:
    """An attention kernel: q `b l n d`, k and v `b m n d`, result `b l n d`; no mask, scaled by 1 / sqrt(d).

    `name`: its name in the report. `note`: a warning for the report; empty if it is exact.
    """

    name: str
    kernel: Kernel
    note: str = ""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""
        return self.kernel(q, k, v)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNeeds:
    """A kernel, and what it needs in addition to half precision and an NVIDIA GPU, Ampere or later.

    `kernel`: finds it in the imported module. `package`, `module`: what is installed and what is imported; empty
    if it comes with torch. `widest`, `multiple`: of a head's channels. `note`: see `AttentionBackend`.
    """

    kernel: Callable[[Any], Kernel]
    widest: int
    multiple: int = 1
    package: str = ""
    module: str = ""
    note: str = ""


def choose_attention(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionBackend:
    """Return a kernel by name; `auto` is the best exact one for this device and model.

    Raises `BadInput` if the kernel is not installed or cannot work there.
    """
    if name == AUTO:
        name = _best(device, dtype, head_dim)
    refusal = why_not(name, device=device, dtype=dtype, head_dim=head_dim)
    if refusal:
        raise BadInput(refusal)
    return AttentionBackend(name, NEEDS[name].kernel(_imported(NEEDS[name])), NEEDS[name].note)


def why_not(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Return one sentence on why a kernel cannot work, or nothing if it should, without importing it."""
    if name == "sdpa":
        return ""
    needs = NEEDS[name]
    remedy = "use --attention auto"
    if _capability(device) < AMPERE:
        return f"the attention {name} needs an NVIDIA GPU, Ampere or later, and {device} is none; {remedy}"
    if dtype not in HALF:
        return f"the attention {name} cannot run in {dtype_name(dtype)}; add --dtype bfloat16, or {remedy}"
    if head_dim > needs.widest or head_dim % needs.multiple:
        shape = f" and multiples of {needs.multiple}" if needs.multiple > 1 else ""
        return f"the attention {name} takes heads up to {needs.widest} wide{shape}, not {head_dim}; {remedy}"
    if needs.module and importlib.util.find_spec(needs.module) is None:
        return f"the attention {name} needs {needs.package}; pip install {needs.package}, or {remedy}"
    return ""


def _best(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Return cudnn on Hopper and later, which its kernel is written for: not every torch picks it there by itself.

    On older GPUs torch picks FlashAttention 2 itself, the same kernel as in the package.
    """
    fits = not why_not("cudnn", device=device, dtype=dtype, head_dim=head_dim)
    wanted = _capability(device) >= HOPPER and torch.backends.cuda.cudnn_sdp_enabled()
    return "cudnn" if fits and wanted else "sdpa"


def _capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU, or (0, 0) for anything else."""
    if device.type != "cuda" or torch.version.hip:
        return 0, 0
    return torch.cuda.get_device_capability(device)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call the kernel directly: torch's switch for it affects all threads, and it cannot do the VAE's attention."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0]
    return out.transpose(1, 2)


def _imported(needs: KernelNeeds) -> Any:
    if not needs.module:
        return None
    try:
        return importlib.import_module(needs.module)
    except (ImportError, OSError) as error:
        fault = f"{needs.package} cannot be imported ({first_line(error)})"
        raise BadInput(f"{fault}; install a build for this torch, or use --attention auto") from error


SDPA = AttentionBackend("sdpa", _sdpa)
SAGE_NOTE = "SageAttention rounds queries and keys to 8 bits, so latents differ from other kernels'."
NEEDS: Mapping[str, KernelNeeds] = {
    "sdpa": KernelNeeds(kernel=lambda _: _sdpa, widest=0),  # runs anywhere
    "cudnn": KernelNeeds(kernel=lambda _: _cudnn, widest=128, multiple=8),
    "flash": KernelNeeds(
        kernel=lambda module: module.flash_attn_func, widest=256, package="flash-attn", module="flash_attn"
    ),
    "sage": KernelNeeds(
        kernel=lambda module: partial(module.sageattn, tensor_layout="NHD"),
        widest=128,
        package="sageattention",
        module="sageattention",
        note=SAGE_NOTE,
    ),
}
"""Every kernel by name."""
