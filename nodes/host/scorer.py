"""The scorer, managed the way ComfyUI manages models: off the GPU until it is loaded together with the others."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import torch

from ...sdvg_core.devices.device import DTYPES
from ...sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostScorer(ImageRewardScorer):
    """ImageReward, and the patcher that moves it. `notes`: on its device."""

    patcher: Any
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the settings for the report, and under `notes` what a reader must know."""
        described = ImageRewardScorer.describe(self)
        return {**described, "notes": (*described["notes"], *self.notes)}


def load_host_scorer(path: str | Path, *, crop: str, device: str, dtype: str) -> HostScorer:
    """Load ImageReward onto the offload device; it runs on `device`, as ComfyUI's own device nodes name it.

    A device this machine lacks, such as the second GPU of another machine, counts as the default, with a note.
    """
    scorer = load_image_reward(path, dtype=DTYPES[dtype], crop=crop)
    found, default, notes = mm.resolve_gpu_device_option(device), mm.get_torch_device(), tuple[str, ...]()
    if found is None and device != "default":
        notes = (f"The scorer was set to {device}, which this machine lacks; it ran on {default}.",)
    patcher = comfy.model_patcher.CoreModelPatcher(scorer.model, found or default, torch.device("cpu"))
    return HostScorer(
        **{one.name: getattr(scorer, one.name) for one in fields(scorer)}, patcher=patcher, notes=notes
    )
