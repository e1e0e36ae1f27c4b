"""The run to plan: the models, the size of the video, and the expected share of rejections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..causal_wan.config import WAN_1_3B, WAN_14B, WanConfig, common_patch
from ..causal_wan.presets import Preset, get_preset
from ..decoders import DecoderName
from ..decoders.open import LIGHT_BASE
from ..devices.device import DTYPES
from ..devices.execution import AUTO, Execution, VaeLayers, resolved_layers
from ..engine.framewise import check_sub_blocks
from ..engine.plan import ModelSet, RunPlan, check_size, check_steps_left
from ..engine.restyle import Strength, check_strengths
from ..engine.router import RouterConfig
from ..engine.types import check_blocks
from ..errors import BadInput
from ..scorers.blip import ImageRewardConfig
from .rates import A6000, Rates

VAE_STRIDE = 8
PUBLISHED_BASE = 96
"""The narrowest width of the Wan VAE."""
Where = Literal["in ComfyUI", "on the command line"]
"""Who loads the models and runs the VAE's layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The run to plan; the defaults are the real pair at the paper's size.

    `width`, `height`: pixels. `dtype`: of the transformers' activations and unquantised weights. `execution`: as in
    loading; its memory is counted, but no time is counted as saved. `side`: whether VAE and scorer have a device of
    their own. `where`: who runs it. `fp8`: whether the target's linear weights are fp8; None for what is faster.
    `vae`: what decodes. `vae_base`: the narrowest width of a Wan VAE. `router`: who makes which block. `needed`:
    the models that this route may load, as its `RunPlan` says. `given_blocks`: of the clip that the run continues.
    `prompts`: how many there are. `control`: by role, the blocks of its control module, if the run has a control.
    `strength`: of the clip that is restyled, if one is.
    Raises `BadInput` for impossible values.
    """

    width: int = 832
    height: int = 480
    blocks: int = 9
    drafter: WanConfig = WAN_1_3B
    target: WanConfig = WAN_14B
    drafter_preset: Preset = field(default_factory=lambda: get_preset("self-forcing-1.3b"))
    target_preset: Preset = field(default_factory=lambda: get_preset("krea-14b"))
    dtype: str = "bfloat16"
    execution: Execution = field(default_factory=Execution)
    side: bool = False
    where: Where = "in ComfyUI"
    fp8: bool | None = None
    vae: DecoderName = "wan"
    vae_base: int = PUBLISHED_BASE
    vae_dtype: str = "float16"
    reward: ImageRewardConfig = field(default_factory=ImageRewardConfig)
    reward_dtype: str = "float32"
    router: RouterConfig = field(default_factory=RouterConfig)
    needed: ModelSet = field(default_factory=ModelSet)
    given_blocks: int = 0
    prompts: int = 1
    control: Mapping[str, int] = field(default_factory=dict)
    strength: Strength | None = None
    rates: Rates = A6000

    def __post_init__(self) -> None:
        check_size(self.width, self.height, self.step)
        check_blocks(self.blocks)
        if self.strength:
            presets = [preset for _, preset in self.models.values()]
            for schedules in ([one.steps for one in presets], [one.first_steps for one in presets]):
                check_strengths([self.strength], [[step.timestep for step in steps] for steps in schedules])
        check_steps_left(self.handover, min(map(self.steps_of, self.models)))
        for name in ("dtype", "vae_dtype", "reward_dtype"):
            if getattr(self, name) not in DTYPES:
                raise BadInput(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(DTYPES)}")
        check_sub_blocks(
            self.drafter_preset.block_frames, self.drafter_preset.anchor_horizon, self.target_preset.block_frames
        )

    def along(self, route: RunPlan) -> PlanRequest:
        """Return it for the blocks, the router and the models of a run."""
        run = replace(self, router=route.router, needed=route.models_needed)
        return replace(run, blocks=len(route.spans), given_blocks=route.spans[0].index)

    @property
    def vae_layers(self) -> VaeLayers:
        """The layers that are counted: ComfyUI's own are like those of diffusers."""
        asked = self.execution.vae_layers
        return "diffusers" if asked == AUTO and self.where == "in ComfyUI" else resolved_layers(asked)

    @property
    def parts(self) -> tuple[str, ...]:
        """The roles of the models that the route may load."""
        return (*(role for role in ("target", "drafter", "scorer") if getattr(self.needed, role)), "vae")

    @property
    def block_frames(self) -> int:
        """Latent frames per block."""
        return self.target_preset.block_frames

    def steps_of(self, role: str, *, first: bool = False) -> int:
        """Return the denoising steps of drafter or target per block of its own. `first`: for the clip's first."""
        preset = self.models[role][1]
        return len(preset.first_steps if first else preset.steps) - self.skipped

    @property
    def skipped(self) -> int:
        """Denoising steps that a clip to restyle replaces."""
        return self.strength.skip if self.strength else 0

    @property
    def handover(self) -> int:
        """Denoising steps that are made before a block is handed over."""
        return max(0, self.router.handover - self.skipped)

    def count_sub_blocks(self, role: str) -> int:
        """Return how many blocks of its own `role` makes for one of the run's."""
        return self.block_frames // self.models[role][1].block_frames

    @property
    def step(self) -> int:
        """Pixels that width and height are multiples of."""
        return VAE_STRIDE * common_patch((self.drafter, self.target))

    @property
    def pixels(self) -> int:
        """Pixels of a frame."""
        return self.width * self.height

    @property
    def models(self) -> Mapping[str, tuple[WanConfig, Preset]]:
        """Both transformers, each with its preset."""
        return {"drafter": (self.drafter, self.drafter_preset), "target": (self.target, self.target_preset)}

    @property
    def decoder(self) -> tuple[DecoderName, int]:
        """The decoder's name, and a Wan VAE's narrowest width."""
        return self.vae, LIGHT_BASE if self.vae == "lightvae" else self.vae_base

    def itemsize(self, name: str) -> int:
        """Bytes per number of the dtype in the field `name`."""
        return int(DTYPES[getattr(self, name)].itemsize)
