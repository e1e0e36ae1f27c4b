"""What `auto` is as the dtype of a checkpoint's weights: the one that the core's planner takes for this card."""

from __future__ import annotations

import comfy.model_management as mm

from ...sdvg_core.causal_wan.checkpoint import WanCheckpoint
from ...sdvg_core.causal_wan.config import WanConfig
from ...sdvg_core.causal_wan.presets import Preset, get_preset
from ...sdvg_core.plan.choose import Plan, plan
from ...sdvg_core.plan.request import PlanRequest

DEFAULT, FP8 = "default", "fp8_e4m3fn"
NONE = "none"
CARD_GB = 2**30
"""What cards are sold by. The planner counts 1e9 bytes, which leaves the difference to driver and fragmentation."""


def choose_weight_dtype(found: WanCheckpoint, preset: Preset | None, role: str) -> tuple[str, str]:
    """Return the weight dtype for a checkpoint on ComfyUI's device, and a sentence on it if there was a choice.

    `preset`: None if it is not known yet. The planner never shrinks a drafter, and only a GPU's memory is short. All of
    the card counts, whatever is in use, so that a machine makes the same video every time.
    """
    device = mm.get_torch_device()
    if role != "target" or device.type != "cuda" or found.quantisation.label != NONE:
        return DEFAULT, ""
    planned = plan_card(int(mm.get_total_memory(device)), found.config, preset)
    chosen = FP8 if planned.setting.fp8 else DEFAULT
    request = planned.request
    return chosen, (
        f"weight_dtype auto is {chosen} for {found.weights.path.name}: planned for {request.width}x{request.height} on "
        f"a card of {planned.vram:.0f} GB, beside a drafter of {request.drafter.size}, VAE and scorer."
    )


def plan_card(total: int, target: WanConfig, preset: Preset | None) -> Plan:
    """Return the plan for a card of `total` bytes, a target, and whatever else is usual."""
    preset, drafter = preset or get_preset("krea-14b"), get_preset("self-forcing-1.3b")
    # A drafter's blocks must divide the target's.
    fitting = drafter if preset.block_frames % drafter.block_frames == 0 else preset
    return plan(total / CARD_GB, PlanRequest(target=target, target_preset=preset, drafter_preset=fitting))
