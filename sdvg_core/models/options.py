"""Options of how models are loaded and run.

torch is imported only where it is used, because the command line imports this file for its help.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..causal_wan.presets import (
    CONTEXT_FIELDS,
    SCHEDULES,
    ContextMemory,
    ContextPolicy,
    Preset,
    get_preset,
    get_schedule,
    guess_preset,
    preset_by_name,
)
from ..checkpoints.pickles import Choice, Weights
from ..decoders import StatedKind
from ..devices.execution import (
    AUTO,
    Dtype,
    Execution,
    RewardDtype,
    TextDtype,
    WeightDtype,
    check_device_name,
)
from ..errors import BadInput
from ..settings import check_fields, setting

if TYPE_CHECKING:
    import torch

    from ..causal_wan.checkpoint import WanCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The settings of one transformer: a preset, and values that replace the preset's (None keeps it).

    `preset`: auto is that of the known model with this file name, else the likely one for its size. `weights`:
    state dict of a training checkpoint; auto as stated by the preset, else EMA first.
    """

    preset: str = AUTO
    policy: ContextPolicy | None = setting(None, flags=("cache",))
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

    def named(self, file: Path) -> Preset | None:
        """Return the stated preset, else that of the file's name, else None."""
        return preset_by_name(file) if self.preset == AUTO else get_preset(self.preset)

    def choice(self, file: Path) -> Choice:
        """Return the choice of a file's state dict, by `weights` or the named preset."""
        named = self.named(file)
        return Choice(self.weights, named.weights if named else AUTO)

    def resolve(self, checkpoint: WanCheckpoint, schedule: str | None = None) -> Preset:
        """Return the preset for a checkpoint. `schedule`: of both models, unless this one has its own.

        Raises `BadInput` for an unknown preset, contradictory values, and settings without effect.
        """
        base = self.named(checkpoint.weights.path) or guess_preset(checkpoint.config)
        changes = {name: value for name, value in asdict(self).items() if value is not None}
        del changes["preset"], changes["weights"]
        preset = replace(base, **{**changes, "schedule": self.schedule or schedule or base.schedule})
        for policy, names in CONTEXT_FIELDS.items():
            unread = [name for name in names if name in changes and policy != preset.policy]
            if unread:
                fault = f"cache={preset.policy} reads no {unread[0].replace('_', '-')}"
                raise BadInput(f"{fault}; leave it out, or choose cache={policy}")
        for chosen in (preset.schedule, preset.first_schedule):
            get_schedule(chosen or preset.schedule)
        return preset


def resolved_reward_dtype(asked: RewardDtype, device: str) -> Dtype:
    """Return the dtype of a scorer; `auto` depends on the device."""
    if asked != AUTO:
        return asked
    return "float16" if device.startswith("cuda") else "float32"


def _check_loras(loras: tuple[str, ...]) -> None:
    from ..checkpoints.lora import split_strength

    for lora in loras:
        split_strength(lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Devices, dtypes and execution of the models; the help of each field describes it.

    `side_device`: as for the paper's second GPU; None for `device`. `dtype`: None as stored. `schedule`: None for
    the presets'. `vram` does not change bits. Raises `BadInput` for invalid values, and for a schedule without
    effect.
    """

    drafter: ModelOptions = setting(factory=ModelOptions, flags=("--drafter-settings",), part="drafter")
    target: ModelOptions = setting(factory=ModelOptions, flags=("--target-settings",), part="target")
    schedule: str | None = setting(
        None, help=f"of both: {', '.join(SCHEDULES)}, or timesteps such as 1000,750,500", check=get_schedule
    )
    device: str = setting("cpu", check=check_device_name)
    side_device: str | None = setting(
        None, help="for text encoder, VAE and scorer, if it is not --device", check=check_device_name
    )
    dtype: Dtype | None = setting(None, help="of drafter and target, if it is not as stored")
    vae_dtype: Dtype = setting("float32", help="of the VAE or TAEHV")
    tae_kind: StatedKind = setting(AUTO, help="of a TAEHV whose file's name does not say its kind")
    text_dtype: TextDtype = setting("bfloat16", help="of the text encoder, which overflows in float16")
    reward_dtype: RewardDtype = setting(
        AUTO, help="of the scorer; auto: float16 on CUDA, else float32", part="scorer"
    )
    execution: Execution = setting(factory=Execution)
    loras: tuple[str, ...] = setting(
        (),
        flags=("--lora",),
        help="LoRAs for drafter or target, whichever they fit",
        metavar="FILE[:STRENGTH]",
        check=_check_loras,
    )
    weight_dtype: WeightDtype = setting(
        "default",
        help="of the target's weights: as stored, or rounded to fp8, half the bytes of bfloat16; fast: torchao "
        "multiplies in fp8",
        part="target",
    )
    vram: float | Literal["auto", "all"] = setting(
        AUTO,
        least=0.0001,
        most=1_000_000,
        help="GB that a video may take of the GPU; layers of drafter and target without room are copied over in "
        "every pass, with the same result; auto: what is free; all: no plan",
        metavar="GB",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.schedule and self.drafter.schedule and self.target.schedule:
            raise BadInput("the schedule of both has no effect, as each model has its own; leave it out")

    @property
    def side(self) -> torch.device:
        """The device of text encoder, VAE and scorer."""
        from ..devices.device import check_device

        return check_device(self.device if self.side_device is None else self.side_device)

    @property
    def scorer_dtype(self) -> Dtype:
        """The scorer's dtype on its device."""
        return resolved_reward_dtype(self.reward_dtype, self.side_device or self.device)
