"""How a run is executed: whatever changes its speed, its memory or its rounding, and not what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch

from ..choices import AUTO as AUTO
from ..choices import Attention as Attention
from ..choices import KvDtype as KvDtype
from ..choices import VaeLayers as VaeLayers
from ..errors import BadInput
from .compiling import CompileMode

FASTEST_LAYERS: Mapping[str, VaeLayers] = {"cpu": "planes"}
"""By type of device, as far as measured.

Seconds of one CPU core (torch 2.13.0, float32) as planes, channels last and diffusers' own: a block at width 8 and
64x64 0.08, 0.27, 0.28; at width 16 and 192x128 0.91, 4.4, 4.3; at width 32 and 96x64 0.69, 1.8, 1.7; a frame at the
released width 96 and 96x64 1.48, 1.64, 1.67. In half precision planes and channels last are within 10 %. Nothing
was measured on a GPU, so GPUs keep diffusers' own until `benchmarks/run_gpu.sh` has timed the others there.
"""
CHOICES = {"attention": Attention, "kv_dtype": KvDtype, "vae_layers": VaeLayers, "compile": CompileMode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How models are run. Raises `BadInput` for a choice that does not exist.

    `compile`: what of the transformers and of the VAE's decoder is compiled. `overlap`: start generating the next
    block while the newest is decoded and scored.
    """

    attention: Attention = AUTO
    kv_dtype: KvDtype = AUTO
    vae_layers: VaeLayers = AUTO
    compile: CompileMode = "off"
    overlap: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise BadInput(
                    f"{name} must be one of {', '.join(get_args(choices))}, but is {getattr(self, name)!r}; choose "
                    "one of them"
                )

    def on(self, device: torch.device) -> Execution:
        """Return it with the layers named that a VAE on `device` gets. Layers are equal only to rounding."""
        return replace(self, vae_layers=vae_layers_on(device, self.vae_layers))

    @property
    def kv_fp8(self) -> bool:
        """Whether keys and values are kept in float8_e4m3fn."""
        return self.kv_dtype != AUTO


def vae_layers_on(device: torch.device, asked: VaeLayers) -> VaeLayers:
    """Return the layers asked for; of `auto`, the fastest known for that type of device.

    Raises `BadInput` for layers that do not exist.
    """
    if asked not in get_args(VaeLayers):
        raise BadInput(
            f"vae_layers must be one of {', '.join(get_args(VaeLayers))}, but is {asked!r}; choose one of them"
        )
    return FASTEST_LAYERS.get(device.type, "diffusers") if asked == AUTO else asked
