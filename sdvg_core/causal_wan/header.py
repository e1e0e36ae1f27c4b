"""What is known of a transformer before a weight is read: the one value that every check and count takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..checkpoints.lora import Lora
from .checkpoint import WanCheckpoint
from .config import WAN_1_3B, WAN_14B, WanConfig
from .control_files import ControlCheckpoint
from .presets import Preset, get_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class WanHeader:
    """What a transformer is and how it will be run: the engine's `ModelShape`. Equal ones cost the same.

    `control_blocks`: of its control module, 0 in a run without a control. `weights`: identifies the weights.
    `notes`: what a user should know of its file. Of a file: its `checkpoint`, its LoRAs, its control module. A
    host, which loads by itself, leaves these out.
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
        """Latent channels."""
        return self.config.out_dim

    @property
    def timesteps(self) -> tuple[float, ...]:
        """The timestep of each denoising step."""
        return tuple(step.timestep for step in self.preset.steps)

    @property
    def first_timesteps(self) -> tuple[float, ...]:
        """The same for the clip's first block."""
        return tuple(step.timestep for step in self.preset.first_steps)

    @property
    def draft_steps(self) -> int | None:
        """After how many steps a drafter stops; None for all of them."""
        return self.preset.draft_steps

    @property
    def anchor_horizon(self) -> int:
        """For how many of the newest latent frames it needs the last pixel frame."""
        return self.preset.anchor_horizon


PUBLISHED_DRAFTER = WanHeader(config=WAN_1_3B, preset=get_preset("self-forcing-1.3b"))
PUBLISHED_TARGET = WanHeader(config=WAN_14B, preset=get_preset("krea-14b"))
