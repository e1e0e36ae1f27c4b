"""The request of a memory plan: the models that a run may load, and the size of the video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..causal_wan.config import common_patch
from ..causal_wan.header import PUBLISHED_DRAFTER, PUBLISHED_TARGET, WanHeader
from ..decoders import DecoderName
from ..decoders.open import LIGHT_BASE
from ..devices.device import DTYPES
from ..devices.execution import Execution
from ..engine.framewise import check_sub_blocks
from ..engine.plan import ModelSet, check_size
from ..engine.types import check_blocks
from ..errors import BadInput
from ..scorers.blip import ImageRewardConfig

VAE_STRIDE = 8
PUBLISHED_BASE = 96
"""Base width of the Wan VAE."""
IN_COMFYUI = Execution(vae_layers="diffusers")
"""Execution in ComfyUI, whose VAE layers are like diffusers'."""
Where = Literal["in ComfyUI", "on the command line"]
"""The program that loads the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The run to plan; the defaults are the real pair at the paper's size.

    `width`, `height`: pixels. `dtype`: of the transformers' activations and unquantised weights. `side`: whether
    VAE and scorer have a second device. `fp8`: whether the target's linear weights are fp8; None for the choice
    that copies less. `vae`: the decoder. `vae_base`: base width of a Wan VAE. `needed`: models of the route (see
    `RunPlan`). `prompts`: their number. Raises `BadInput` for invalid values.
    """

    width: int = 832
    height: int = 480
    blocks: int = 9
    drafter: WanHeader = PUBLISHED_DRAFTER
    target: WanHeader = PUBLISHED_TARGET
    dtype: str = "bfloat16"
    execution: Execution = IN_COMFYUI
    side: bool = False
    where: Where = "in ComfyUI"
    fp8: bool | None = None
    vae: DecoderName = "wan"
    vae_base: int = PUBLISHED_BASE
    vae_dtype: str = "float16"
    reward: ImageRewardConfig = field(default_factory=ImageRewardConfig)
    reward_dtype: str = "float16"
    needed: ModelSet = field(default_factory=ModelSet)
    prompts: int = 1

    def __post_init__(self) -> None:
        check_size(self.width, self.height, self.step)
        check_blocks(self.blocks)
        for name in ("dtype", "vae_dtype", "reward_dtype"):
            if getattr(self, name) not in DTYPES:
                raise BadInput(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(DTYPES)}")
        check_sub_blocks(self.drafter.block_frames, self.drafter.anchor_horizon, self.target.block_frames)

    @property
    def parts(self) -> tuple[str, ...]:
        """Roles of the models that the route may load."""
        return (*(role for role in ("target", "drafter", "scorer") if getattr(self.needed, role)), "vae")

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""
        return self.target.block_frames

    @property
    def step(self) -> int:
        """Pixels of which width and height are multiples."""
        return VAE_STRIDE * common_patch((self.drafter.config, self.target.config))

    @property
    def pixels(self) -> int:
        """Pixels of a frame."""
        return self.width * self.height

    @property
    def models(self) -> Mapping[str, WanHeader]:
        """Both transformers."""
        return {"drafter": self.drafter, "target": self.target}

    @property
    def decoder(self) -> tuple[DecoderName, int]:
        """The decoder's name, and the base width of a Wan VAE."""
        return self.vae, LIGHT_BASE if self.vae == "lightvae" else self.vae_base

    def itemsize(self, name: str) -> int:
        """Return the bytes per number of the dtype in the field `name`."""
        return int(DTYPES[getattr(self, name)].itemsize)
