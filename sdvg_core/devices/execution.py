"""How a run is executed: whatever changes its speed, its memory or its rounding, and not what is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import BadInput
from .compiling import CompileMode

AUTO: Literal["auto"] = "auto"
Attention = Literal["auto", "sdpa", "cudnn", "flash", "sage"]
"""The transformers' attention kernel; `auto` is the best exact one."""
KvDtype = Literal["auto", "float8_e4m3fn"]
"""What keys and values are kept in; `auto` is the dtype of activations."""
VaeLayers = Literal["diffusers", "lean", "channels-last", "planes"]
"""How the VAE's layers are laid out: diffusers' own, lean (CPU, miniature), or for a GPU in half precision."""
CHOICES = {"attention": Attention, "kv_dtype": KvDtype, "vae_layers": VaeLayers, "compile": CompileMode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How models are run. Raises `BadInput` for a choice that does not exist.

    `compile`: what of the transformers and of the VAE's decoder is compiled. `overlap`: start generating the next
    block while the newest is decoded and scored.
    """

    attention: Attention = AUTO
    kv_dtype: KvDtype = AUTO
    vae_layers: VaeLayers = "diffusers"
    compile: CompileMode = "off"
    overlap: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise BadInput(
                    f"{name} must be one of {', '.join(get_args(choices))}, but is {getattr(self, name)!r}; choose "
                    "one of them"
                )

    @property
    def kv_fp8(self) -> bool:
        """Whether keys and values are kept in float8_e4m3fn."""
        return self.kv_dtype != AUTO
