"""Options of how models are loaded and run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import BadInput
from .context import ContextMemory, ContextName, Weights
from .execution import (
    AUTO,
    TRANSFORMER_ROLES,
    Dtype,
    Execution,
    RewardDtype,
    TextDtype,
    WeightDtype,
    check_device_name,
)
from .fields import as_json, check_fields, setting
from .schedules import SCHEDULES, get_schedule

TaeKind = Literal["taew2_1", "lighttaew2_1"]
TAE_KINDS: tuple[TaeKind, ...] = get_args(TaeKind)
StatedKind = Literal["auto", "taew2_1", "lighttaew2_1"]
"""The kind stated by the user; `auto`: from the file's digest, then its name."""
LoraMode = Literal["merge", "beside"]
DecoderName = Literal["wan", "lightvae", "tae"]
MOST_STRENGTH = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The settings of one transformer: a preset, and values that replace the preset's (None keeps it).

    `preset`: auto is that of the known model with this file name, else the likely one for its size. `weights`:
    state dict of a training checkpoint; auto as stated by the preset, else EMA first.
    """

    preset: str = AUTO
    policy: ContextName | None = setting(None, flags=("cache",))
    block_frames: int | None = None
    context_frames: int | None = None
    keep_first_frame: bool | None = None
    window: int | None = None
    sink: int | None = None
    relative: bool | None = None
    recache: bool | None = None
    flush: bool | None = None
    context_memory: ContextMemory | None = None
    schedule: str | None = None
    first_schedule: str | None = None
    draft_steps: int | None = None
    weights: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)


def resolved_reward_dtype(asked: RewardDtype, device: str) -> Dtype:
    """Return the dtype of a scorer; `auto` depends on the device."""
    if asked != AUTO:
        return asked
    return "float16" if device.startswith("cuda") else "float32"


def split_strength(text: str) -> tuple[Path, float]:
    """Parse `FILE` or `FILE:STRENGTH`. Raises `BadInput` for a strength out of range."""
    name, colon, number = text.rpartition(":")
    try:
        strength = float(number) if colon else 1.0
    except ValueError:
        return Path(text), 1.0
    if not math.isfinite(strength) or abs(strength) > MOST_STRENGTH:
        raise BadInput(f"a LoRA's strength is {number}; give one from -{MOST_STRENGTH:g} to {MOST_STRENGTH:g}")
    return Path(name if colon else text), strength


def load_as_json(load: LoadOptions) -> dict[str, Any]:
    """Return load options as JSON values, LoRAs by their files' names."""
    loras = [split_strength(lora) for lora in load.loras]
    return {**as_json(load), "loras": [f"{path.name}:{strength:g}" for path, strength in loras]}


def _check_loras(loras: tuple[str, ...]) -> None:
    for lora in loras:
        split_strength(lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Devices, dtypes and execution of the models; the help of each field describes it.

    `side_device`: as for the paper's second GPU; None for `device`. `dtype`: None as stored. `schedule`: None for
    the presets'. Raises `BadInput` for invalid values, and for a schedule without
    effect.
    """

    drafter: ModelOptions = setting(factory=ModelOptions, flags=("--drafter-settings",), parts=("drafter",))
    target: ModelOptions = setting(factory=ModelOptions, flags=("--target-settings",), parts=("target",))
    schedule: str | None = setting(
        None, help=f"of both: {', '.join(SCHEDULES)}, or timesteps such as 1000,750,500", check=get_schedule
    )
    device: str = setting("cpu", check=check_device_name)
    side_device: str | None = setting(
        None, help="for text encoder, VAE and scorer, if it is not --device", check=check_device_name
    )
    dtype: Dtype | None = setting(
        None, help="of drafter and target, if it is not as stored", parts=TRANSFORMER_ROLES
    )
    vae_dtype: Dtype = setting("float32", help="of the VAE or TAEHV", parts=("codec",))
    tae_kind: StatedKind = setting(
        AUTO, help="of a TAEHV whose file's name does not say its kind", parts=("codec",)
    )
    text_dtype: TextDtype = setting("bfloat16", help="of the text encoder, which overflows in float16")
    reward_dtype: RewardDtype = setting(
        AUTO, help="of the scorer; auto: float16 on CUDA, else float32", parts=("scorer",)
    )
    execution: Execution = setting(factory=Execution)
    loras: tuple[str, ...] = setting(
        (),
        flags=("--lora",),
        help="LoRAs for drafter or target, whichever they fit",
        metavar="FILE[:STRENGTH]",
        check=_check_loras,
    )
    lora_mode: LoraMode = setting(
        "merge",
        help="merge LoRAs into the weights, or add them beside the layers: slower, but never rounded to int8",
    )
    weight_dtype: WeightDtype = setting(
        "default",
        help="of the target's weights: as stored, or rounded to fp8, half the bytes of bfloat16; fast: torchao "
        "multiplies in fp8",
        parts=("target",),
    )
    vram: float | Literal["auto", "all"] = setting(
        AUTO,
        least=0.0001,
        most=1_000_000,
        help="GB that a video may take of the GPU; layers of drafter and target without room are copied over in "
        "every pass, with the same result; auto: what is free; all: no plan",
        metavar="GB",
        of_files=False,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.schedule and self.drafter.schedule and self.target.schedule:
            raise BadInput("the schedule of both has no effect, as each model has its own; leave it out")

        if self.lora_mode != "merge" and not self.loras:
            raise BadInput("the LoRA mode has no effect without a LoRA; leave it out, or add --lora")

    @property
    def scorer_dtype(self) -> Dtype:
        """The scorer's dtype on its device."""
        return resolved_reward_dtype(self.reward_dtype, self.side_device or self.device)
