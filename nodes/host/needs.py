"""The memory a run needs besides its models' weights, worked out before loading, with the numbers of `sdvg_core.plan`.

ComfyUI counts weights, but not keys and values, the VAE's state or activations. Left alone, it would fill the device
with weights first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from comfy.model_patcher import ModelPatcher
from comfy.sd import VAE

from ...sdvg_core.causal_wan.presets import Preset
from ...sdvg_core.devices.device import dtype_name
from ...sdvg_core.devices.execution import Execution
from ...sdvg_core.plan.decoders import PUBLISHED_BASE
from ...sdvg_core.plan.layout import Sizes, owner, step_parts, workers
from ...sdvg_core.plan.request import PlanRequest
from ...sdvg_core.scorers.image_reward import ImageRewardScorer
from .model import compute_dtype, config_of
from .vae import header_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes needed on one device besides weights, in the step that needs most there; names as in `sdvg_core.plan`."""

    step: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())


def plan_request(
    models: Mapping[str, tuple[ModelPatcher, Preset]],
    decoders: Mapping[str, VAE],
    scorer: ImageRewardScorer | None,
    execution: Execution,
    **size: Any,
) -> PlanRequest:
    """Return the request to the core's planner.

    `models`: drafter, target or both. `decoders`: vae, and perhaps judge. `size`: width, height, blocks, and perhaps prompts and control.
    Raises `BadInput` for bad values.
    """
    # The core knows one dtype for both models; if they differ, take the wider.
    dtype = max((compute_dtype(patcher) for patcher, _ in models.values()), key=lambda d: d.itemsize)
    # The core plans for a pair. Nothing is counted on a device for a role without a MODEL.
    first = next(iter(models.values()))
    drafter, target = (models.get(role, first) for role in ("drafter", "target"))
    headers = {role: header_of(vae) for role, vae in decoders.items()}
    request = PlanRequest(
        drafter=config_of(drafter[0].model.diffusion_model),
        target=config_of(target[0].model.diffusion_model),
        drafter_preset=drafter[1],
        target_preset=target[1],
        dtype=dtype_name(dtype),
        vae=headers["vae"].planned_as,
        judge=headers["judge"].planned_as if "judge" in headers else None,
        vae_base=headers["vae"].decoder_base or PUBLISHED_BASE,
        vae_dtype=dtype_name(decoders["vae"].vae_dtype),
        execution=execution,
        **size,
    )
    return replace(request, reward=scorer.config, reward_dtype=dtype_name(scorer.dtype)) if scorer else request


def needs_of(request: PlanRequest, devices: Mapping[str, torch.device], *, fp8: bool) -> dict[torch.device, Needs]:
    """Return what each device must hold besides weights.

    `devices`: the device of each model, by role, perhaps without a scorer. `fp8`: whether the target's
    weights are cast up on use.
    """
    sizes = Sizes.of(request, fp8=fp8)
    steps = step_parts(request, sizes)
    found: dict[torch.device, Needs] = {}
    at = workers(request)
    for step, worker in at.items():
        if worker not in devices:
            continue
        for device in dict.fromkeys(devices.values()):
            parts = {
                part: size
                for part, size in steps[step].items()
                if part not in sizes.weights and devices.get(owner(part, worker)) == device
            }
            needs = Needs(step=step, parts=parts)
            found[device] = max(found.get(device, needs), needs, key=lambda n: n.total)
    return found
