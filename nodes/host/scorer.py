"""The scorer, managed the way ComfyUI manages models: off the GPU until it is loaded together with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import torch
from torch import Tensor

from ...sdvg_core.devices.device import DTYPES
from ...sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward


@dataclass(frozen=True, slots=True, eq=False)
class HostScorer:
    """A scorer and the patcher that moves it; a `Scorer` of the engine."""

    scorer: ImageRewardScorer
    patcher: Any
    notes: tuple[str, ...] = ()

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per pixel frame of `b f c h w`."""
        return self.scorer.score(frames, prompt)

    def prompt_notes(self, prompt: str) -> tuple[str, ...]:
        """Return what a reader of scores under this prompt must know."""
        return self.scorer.prompt_notes(prompt)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report, and under `notes` what a reader must know."""
        described = self.scorer.describe()
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
    return HostScorer(scorer, patcher, notes)
