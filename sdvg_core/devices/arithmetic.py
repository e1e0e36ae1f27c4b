"""What the rounding of a computation hangs on, besides its inputs and its code."""

from __future__ import annotations

import torch

from .environment import versions_on


def arithmetic_on(device: torch.device) -> dict[str, str]:
    """Return, by name, everything about a device and its libraries that can change the bits of a result."""
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
