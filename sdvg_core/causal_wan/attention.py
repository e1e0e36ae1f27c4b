"""Operations of the causal forward that are not modules: casts, time and position embeddings, attention kernels.

A host may pass a subclass of `TorchOps` with its own kernel and casts. A kernel's package is imported only when the
kernel is chosen. All are exact except SageAttention, which rounds queries and keys to 8 bits, so it is used only by
name and never by `auto`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices.compiling import float64_device
from ..devices.device import capability, dtype_name
from ..errors import BadInput, first_line
from ..settings.execution import AUTO

# --- kernels

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelNeeds:
    """A kernel and its needs, in addition to half precision and an NVIDIA GPU of Ampere or later.

    `kernel`: takes it from the imported module. `module`: its name; empty if it is part of torch. `widest`,
    `multiple`: of a head's channels. `note`: see `AttentionBackend`.
    """

    kernel: Callable[[Any], Kernel]
    widest: int
    multiple: int = 1
    module: str = ""
    note: str = ""


def choose_attention(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionBackend:
    """Return a kernel by name; `auto` is the best exact one for this device and model.

    That is cudnn's on Hopper and later, which torch does not always pick by itself; elsewhere torch picks
    FlashAttention 2, the same kernel as in the package.
    Raises `BadInput` if the kernel is not installed or cannot work there.
    """
    refusal = why_not("cudnn" if name == AUTO else name, device=device, dtype=dtype, head_dim=head_dim)
    if name == AUTO:
        wanted = capability(device) >= HOPPER and torch.backends.cuda.cudnn_sdp_enabled()
        name = "cudnn" if wanted and not refusal else "sdpa"
    elif refusal:
        raise BadInput(refusal)
    if name == "sdpa":
        return SDPA
    needs = NEEDS[name]
    try:
        module = importlib.import_module(needs.module) if needs.module else None
    except (ImportError, OSError) as error:
        fault = f"{needs.module} cannot be imported ({first_line(error)})"
        raise BadInput(f"{fault}; install a build for this torch, or use --attention auto") from error
    return AttentionBackend(name, needs.kernel(module), needs.note)


def why_not(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Return why a kernel cannot work, or an empty string. Does not import it."""
    if name == "sdpa":
        return ""
    needs = NEEDS[name]
    remedy = "use --attention auto"
    if capability(device) < AMPERE:
        return f"the attention {name} needs an NVIDIA GPU, Ampere or later, and {device} is none; {remedy}"
    if dtype not in HALF:
        return f"the attention {name} cannot run in {dtype_name(dtype)}; add --dtype bfloat16, or {remedy}"
    if head_dim > needs.widest or head_dim % needs.multiple:
        shape = f" and multiples of {needs.multiple}" if needs.multiple > 1 else ""
        return f"the attention {name} takes heads up to {needs.widest} wide{shape}, not {head_dim}; {remedy}"
    if needs.module and importlib.util.find_spec(needs.module) is None:
        package = needs.module.replace("_", "-")
        return f"the attention {name} needs {package}; pip install {package}, or {remedy}"
    return ""


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call the kernel directly, as torch's switch for it affects all threads and the VAE's attention too."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0]
    return out.transpose(1, 2)


SDPA = AttentionBackend("sdpa", _sdpa)
SAGE_NOTE = "SageAttention rounds queries and keys to 8 bits, so latents differ from other kernels'."
NEEDS: Mapping[str, KernelNeeds] = {
    "sdpa": KernelNeeds(kernel=lambda _: _sdpa, widest=0),  # runs anywhere
    "cudnn": KernelNeeds(kernel=lambda _: _cudnn, widest=128, multiple=8),
    "flash": KernelNeeds(kernel=lambda module: module.flash_attn_func, widest=256, module="flash_attn"),
    "sage": KernelNeeds(
        kernel=lambda module: partial(module.sageattn, tensor_layout="NHD"),
        widest=128,
        module="sageattention",
        note=SAGE_NOTE,
    ),
}
"""Every kernel by name."""


# --- operations

ROPE_BASE = 10000.0
TIME_BASE = 10000.0
Grid = tuple[int, int, int]


class TorchOps:
    """Operations in plain torch. `dtype`: of activations, and of the K/V cache unless set otherwise."""

    def __init__(self, dtype: torch.dtype, backend: AttentionBackend = SDPA) -> None:
        self.dtype = dtype
        self.backend = backend

    def cast(self, parameter: Tensor, like: Tensor) -> Tensor:
        """Return a bare parameter in the dtype and on the device of `like`."""
        return parameter.to(like.device, like.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend without a mask: q `b l n d`, k and v `b m n d`, result `b l (n d)`."""
        return self.backend.kernel(q, k, v).flatten(2)

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend for an attention module; a host may choose the kernel by module."""
        return self.attention(q, k, v)

    def sinusoid(self, times: Tensor, width: int) -> Tensor:
        """Return cosines, then sines, of each time (0 to 1000) at `width / 2` frequencies, in the times' dtype."""
        half = width // 2
        steps = torch.arange(half, dtype=torch.float64, device=times.device) / half
        angles = times[..., None] * torch.exp(-math.log(TIME_BASE) * steps)
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def rope(self, tree: Any, first: int, grid: Grid, device: torch.device) -> Any:
        """Return the rotary table of `grid` = (t, h, w) tokens whose first latent frame is at position `first`.

        Here cosines and sines, each `l 1 (d/2)` float32.
        """
        angles = rope_angles(tree.dim // tree.num_heads, first, grid, float64_device(device))[:, None]
        return angles.cos().float().to(device), angles.sin().float().to(device)

    def rotate(self, x: Tensor, rope: Any) -> Tensor:
        """Rotate each adjacent pair of channels of `b l n d` by its angle in the table, in float32."""
        cos, sin = rope
        even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)


def rope_angles(head_dim: int, first: int, grid: tuple[int, int, int], device: torch.device | str) -> Tensor:
    """Return the rotary angles of a grid of tokens, `(t h w) (d/2)`, float64.

    The channel pairs are split between time, height and width; time takes the remainder, so 64 pairs are split 22,
    21, 21. Positions start at `first` in time, and at 0 in height and width.
    """
    side = 2 * (head_dim // 6)
    starts = (first, 0, 0)
    parts = []
    for axis, width in enumerate((head_dim - 2 * side, side, side)):
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
        positions = torch.arange(grid[axis], dtype=torch.float64, device=device) + starts[axis]
        shape = [1, 1, 1, -1]
        shape[axis] = grid[axis]
        parts.append(torch.outer(positions, ROPE_BASE**-exponents).view(shape).expand(*grid, -1))
    return torch.cat(parts, dim=-1).flatten(0, 2)
