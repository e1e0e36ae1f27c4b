"""What a run used: packages and the device."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from .. import __version__

REPORTED = ("torch", "transformers", "diffusers", "safetensors")
# Attention kernels that a run may use; named if they are installed.
OPTIONAL = ("flash-attn", "sageattention")


def versions_on(device: str) -> dict[str, str]:
    """Return the versions for a report, and the device in words."""
    packages = {name: package_version(name) or "not installed" for name in REPORTED}
    packages |= {name: found for name in OPTIONAL if (found := package_version(name))}
    on = torch.device(device)
    name = torch.cuda.get_device_name(on) if on.type == "cuda" else processor()
    return {"sdvg": __version__, "python": platform.python_version(), **packages, "device": f"{device}: {name}"}


@cache
def package_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Return the processor's name, as far as the system knows it."""
    return platform.processor() or platform.machine()
