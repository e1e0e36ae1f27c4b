"""The pack's socket types and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import torch
from comfy.model_patcher import CoreModelPatcher, ModelPatcher
from comfy_api.latest import io
from torch import Tensor

from ...sdvg_core.devices.device import DTYPES
from ...sdvg_core.engine.outside import OutsidePart
from ...sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward
from ...sdvg_core.settings.execution import RewardDtype
from ...sdvg_core.settings.load import resolved_reward_dtype
from ...sdvg_core.settings.parts import check_part
from ...sdvg_core.settings.route import Budget, Custom, Route

RouterSocket = io.Custom("SDVG_ROUTER")
ReportSocket = io.Custom("SDVG_REPORT")
PromptsSocket = io.Custom("SDVG_PROMPTS")
ScorerSocket = io.Custom("SDVG_SCORER")
StartSocket = io.Custom("SDVG_START")

PICTURE = "first frame"
RESTYLE = "restyle"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostScorer(ImageRewardScorer):
    """ImageReward with the ComfyUI patcher that moves it. `notes`: warnings about its device."""

    patcher: ModelPatcher
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the scorer's settings for the report, with its notes."""
        described = ImageRewardScorer.describe(self)
        return {**described, "notes": (*described["notes"], *self.notes)}


def load_host_scorer(path: str | Path, *, device: str, dtype: RewardDtype) -> HostScorer:
    """Load ImageReward onto the offload device, to run on `device` (an option of ComfyUI's device widgets).

    Fall back to the default device, with a note, if this machine lacks `device`.
    """
    chosen = mm.resolve_gpu_device_option(device)
    default = mm.get_torch_device()
    scorer = load_image_reward(path, dtype=DTYPES[resolved_reward_dtype(dtype, str(chosen or default))])
    notes: tuple[str, ...] = ()
    if chosen is None and device != "default":
        notes = (f"This machine has no {device}, to which the scorer was set; it ran on {default}.",)
    patcher = CoreModelPatcher(scorer.model, chosen or default, torch.device("cpu"))
    settings = {field.name: getattr(scorer, field.name) for field in fields(scorer)}
    return HostScorer(**settings, patcher=patcher, notes=notes)


@dataclass(frozen=True, slots=True, eq=False)
class RouterValue:
    """The output of the Quality Router.

    `scorer`: a `HostScorer` or another pack's, or None for policies that use no scores. Widgets that were changed from
    their defaults: `unread`: have no effect; `of_partial_blocks`: have one on blocks of which the target makes a part.
    """

    route: Route | Budget
    scorer: HostScorer | OutsidePart | None
    unread: tuple[str, ...] = ()
    of_partial_blocks: tuple[str, ...] = ()


def needs_scorer(route: Route | Budget) -> bool:
    """Return True if a route may score a block."""
    return isinstance(route, Route) and route.policy.needs_scorer


def router_of(value: Any) -> RouterValue:
    """Return a wire's value as a `RouterValue`. A router of another pack may have an attribute `scorer`."""
    if isinstance(value, RouterValue):
        return value
    route = Route(Custom(value))
    scorer = getattr(value, "scorer", None) if needs_scorer(route) else None
    return RouterValue(route, scorer_of(scorer))


def scorer_of(value: Any) -> HostScorer | OutsidePart | None:
    """Return a wire's value as a scorer, or None. One of another pack is wrapped, so that every result is checked."""
    if value is None or isinstance(value, HostScorer):
        return value
    check_part("scorer", value)
    return OutsidePart("scorer", value)


@dataclass(frozen=True, slots=True, eq=False)
class PromptEntry:
    """One entry of a prompt schedule. `index`: its first block, from 0. `cut`: whether it begins a new scene."""

    index: int
    conditioning: Sequence[Any]
    text: str
    cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PromptEncoder:
    """What encoded a conditioning, for prompts that come while a live session runs.

    `encode`: from a text to its CONDITIONING. `understand`: from a text to the prompt that is taken in its place;
    raises `BadInput` for one that cannot be. `patcher`: the model, if ComfyUI moves it.
    """

    encode: Callable[[str], Sequence[Any]]
    understand: Callable[[str], str] = str
    patcher: ModelPatcher | None = None

    def __deepcopy__(self, memo: object) -> PromptEncoder:
        """Return itself: nodes copy a conditioning with all that is in it, and would copy the model."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class ClipValue:
    """A VIDEO: `images` `f h w c` in [0, 1], 16 frames a second. `sound`: an AUDIO that begins with them, or None.

    `taken`: what the video had, such as `3 frames at 24/s`; empty for images.
    """

    images: Tensor
    taken: str
    sound: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StartValue:
    """The output of SDVG Start. `images`: `f h w c` in [0, 1], 16 frames a second; none if it has only clips.

    `how`: the choice of `use_as`. `strength`: of restyling, a name or a number as text. `taken`, `sound`: see `ClipValue`.
    `clips`: by name, to show between shots. `context_blocks`: of a clip to extend, see `VideoRequest`.
    """

    images: Tensor
    how: str
    strength: str
    taken: str
    sound: Mapping[str, Any] | None = None
    clips: Mapping[str, ClipValue] = field(default_factory=dict)
    context_blocks: int = 0
