"""Where and how the models of a run are loaded."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from ..causal_wan.checkpoint import WanCheckpoint
from ..causal_wan.presets import Preset, get_preset, guess_preset, preset_by_name
from ..causal_wan.schedule import get_schedule
from ..checkpoints.lora import split_strength
from ..checkpoints.state_dicts import Choice, Weights
from ..decoders import StatedKind
from ..devices.device import check_device, check_device_name
from ..devices.execution import AUTO, Dtype, Execution, RewardDtype, WeightDtype, resolved_reward_dtype
from ..errors import BadInput
from ..scorers import Crop
from ..settings import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to run one transformer: a preset, and values that replace the preset's (None keeps it).

    `preset`: auto is that of the known model with this file name, else the likely one for its size. `weights`:
    which state dict of a training checkpoint to take; auto is what the preset states, else EMA first.
    """

    preset: str = AUTO
    policy: Literal["recompute", "incremental"] | None = None
    block_frames: int | None = None
    context_frames: int | None = None
    keep_first_frame: bool | None = None
    window: int | None = None
    sink: int | None = None
    relative: bool | None = None
    recache: bool | None = None
    flush: bool | None = None
    context_memory: str | None = None
    schedule: str | None = None
    first_schedule: str | None = None
    draft_steps: int | None = None
    weights: Weights = AUTO

    def __post_init__(self) -> None:
        check_fields(self)

    def named(self, file: Path) -> Preset | None:
        """Return the preset that is stated, or else the one of the file's name; None if there is neither."""
        return preset_by_name(file) if self.preset == AUTO else get_preset(self.preset)

    def choice(self, file: Path) -> Choice:
        """Which state dict of a file to take. A size suggests a preset, but no state dict."""
        named = self.named(file)
        return Choice(self.weights, named.weights if named else AUTO)

    def resolve(self, checkpoint: WanCheckpoint, schedule: str | None = None) -> Preset:
        """Return the preset for a checkpoint. `schedule`: for both models; this one's own comes first.

        Raises `BadInput` if the preset is unknown or contradicts itself.
        """
        base = self.named(checkpoint.weights.path) or guess_preset(checkpoint.config)
        changes = {name: value for name, value in asdict(self).items() if value is not None}
        del changes["preset"], changes["weights"]
        preset = replace(base, **{**changes, "schedule": self.schedule or schedule or base.schedule})
        for chosen in (preset.schedule, preset.first_schedule):
            get_schedule(chosen or preset.schedule)
        return preset


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Where the models run, in which dtypes, and how.

    `device`: of the transformers; `side_device`: of text encoder, VAE and scorer (the paper's second GPU), None for
    the same one. `dtype`: of the transformers, None as stored. `tae_kind`: which latents a TAEHV takes, if its file
    does not tell. `schedule`: for models without one of their own; None for the presets'.
    `loras`: files, each perhaps with `:STRENGTH`, for the model that they fit. `weight_dtype`: of the target's
    linear weights. `vram`: how many GB of `device` a video may take, `auto` for what is free on a GPU; layers that
    do not fit are copied over in every pass, which changes no bit. `all` makes no plan.
    """

    drafter: ModelOptions = field(default_factory=ModelOptions)
    target: ModelOptions = field(default_factory=ModelOptions)
    schedule: str | None = None
    device: str = "cpu"
    side_device: str | None = None
    dtype: Dtype | None = None
    vae_dtype: Dtype = "float32"
    tae_kind: StatedKind = AUTO
    text_dtype: Dtype = "bfloat16"
    reward_dtype: RewardDtype = AUTO
    crop: Crop = "center"
    execution: Execution = field(default_factory=Execution)
    loras: tuple[str, ...] = ()
    weight_dtype: WeightDtype = "default"
    vram: float | Literal["auto", "all"] = AUTO

    def __post_init__(self) -> None:
        check_fields(self)
        for device in filter(None, (self.device, self.side_device)):
            check_device_name(device)
        if self.schedule is not None:
            get_schedule(self.schedule)
        if self.schedule and self.drafter.schedule and self.target.schedule:
            raise BadInput("the schedule of both has no effect, as each model has its own; leave it out")
        for lora in self.loras:
            split_strength(lora)
        if isinstance(self.vram, float | int) and not 0 < self.vram < math.inf:
            raise BadInput(f"vram is {self.vram:g}; give GB such as 16, auto or all")

    @property
    def side(self) -> torch.device:
        """The device of text encoder, VAE and scorer."""
        return check_device(self.device if self.side_device is None else self.side_device)

    def resolved(self) -> LoadOptions:
        """Return the options with `auto` replaced by the layers of the VAE and the dtype of the scorer."""
        reward_dtype = resolved_reward_dtype(self.reward_dtype, self.side_device or self.device)
        return replace(self, execution=self.execution.resolved, reward_dtype=reward_dtype)
