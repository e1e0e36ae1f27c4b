"""The header of a transformer: the one description, before weights are read, for all checks and memory counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..checkpoints.lora import Lora
from .checkpoint import WanCheckpoint
from .config import WAN_1_3B, WAN_14B, WanConfig
from .control_files import ControlCheckpoint
from .presets import Preset, get_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class WanHeader:
    """A transformer's sizes and settings; an engine's `ModelShape`. Equal headers have equal costs.

    `control_blocks`: of its control module, 0 without a control. `weights`: identifies the weights. `notes`:
    warnings about its file. `checkpoint`, `loras`, `control`: of a file; empty for a model that ComfyUI loads.
    """

    config: WanConfig
    preset: Preset
    control_blocks: int = 0
    weights: object = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    checkpoint: WanCheckpoint | None = field(default=None, compare=False)
    loras: tuple[Lora, ...] = field(default=(), compare=False)
    control: ControlCheckpoint | None = field(default=None, compare=False)
    name: str = field(default="", compare=False)

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""
        return self.preset.block_frames

    @property
    def latent_channels(self) -> int:
        """Number of latent channels."""
        return self.config.out_dim

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of each denoising step."""
        return tuple(step.timestep for step in self.preset.steps)

    @property
    def first_timesteps(self) -> tuple[float, ...]:
        """The timesteps of the clip's first block."""
        return tuple(step.timestep for step in self.preset.first_steps)

    @property
    def draft_steps(self) -> int | None:
        """Number of denoising steps of a draft; None for all."""
        return self.preset.draft_steps

    @property
    def anchor_horizon(self) -> int:
        """Number of newest latent frames whose last pixel frame it needs."""
        return self.preset.anchor_horizon


PUBLISHED_DRAFTER = WanHeader(config=WAN_1_3B, preset=get_preset("self-forcing-1.3b"))
PUBLISHED_TARGET = WanHeader(config=WAN_14B, preset=get_preset("krea-14b"))
