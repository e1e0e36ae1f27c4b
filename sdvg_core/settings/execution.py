"""Execution settings of a run: devices, dtypes, speed, memory, rounding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import BadInput, quoted
from .fields import check_fields, setting

AUTO: Literal["auto"] = "auto"
Dtype = Literal["float32", "float16", "bfloat16"]
DTYPE_NAMES = get_args(Dtype)
TRANSFORMER_ROLES = ("drafter", "target")
TextDtype = Literal["bfloat16", "float32"]
"""The dtype of the text encoder, which overflows in float16."""
RewardDtype = Literal["auto", "float32", "float16"]
"""The dtype of the scorer; `auto` is float16 on CUDA, else float32. bfloat16 would shift scores by 0.04."""
CompileMode = Literal["off", "default"]
"""`default` compiles the stages around a layer's attentions, and the VAE's decoder."""
AttentionChoice = Literal["auto", "sdpa", "cudnn", "flash", "sage"]
"""The transformers' attention kernel; `auto` is the best exact one."""
KvDtype = Literal["auto", "float8_e4m3fn"]
"""The dtype of the K/V cache; `auto` is that of activations."""
WeightDtype = Literal["default", "fp8_e4m3fn", "fp8_e4m3fn_fast"]
"""The dtype of linear weights; the default is as stored. `fast` multiplies in fp8 too. The names are ComfyUI's."""
VaeLayers = Literal["diffusers", "planes"]
"""The VAE's layers: diffusers' own, or 2-D ones, which are faster and equal up to rounding.

Nine blocks of full size take an H100 1.67 s as planes, and 2.70 s as diffusers' own (lab/benchmarks/LOG.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Execution settings of models. Raises `BadInput` for an unknown choice."""

    attention: AttentionChoice = setting(
        AUTO,
        help="kernel for drafter and target; auto takes the best exact one, sage rounds to 8 bits",
        parts=TRANSFORMER_ROLES,
    )
    kv_dtype: KvDtype = setting(
        AUTO,
        help="of the K/V cache: as computed, or rounded to 8 bits, half the bytes of bfloat16",
        widget={"advanced": True, "optional": True},
        parts=TRANSFORMER_ROLES,
    )
    vae_layers: VaeLayers = setting("planes", parts=("codec",))
    compile: CompileMode = setting(
        "off", help="default compiles the transformers and the VAE decoder", parts=(*TRANSFORMER_ROLES, "codec")
    )

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
        raise BadInput(f"there is no device {quoted(name)}; use cpu, cuda, or one of several such as cuda:1")
