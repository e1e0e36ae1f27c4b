"""The scorer as ComfyUI keeps models: off the GPU until it is asked for together with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import comfy.model_management as mm
import comfy.model_patcher
import torch
from torch import Tensor

from ...sdvg_core.loading import DTYPES
from ...sdvg_core.scorers.image_reward import ImageRewardScorer, load_image_reward


@dataclass(frozen=True, slots=True, eq=False)
class HostScorer:
    """A scorer and the patcher that moves it; a `Scorer` of the engine."""

    scorer: ImageRewardScorer
    patcher: Any

    def score(self, frames: Tensor, prompt: str) -> Tensor:
        """Return one score per pixel frame of `b f c h w`."""
        return self.scorer.score(frames, prompt)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings for the report."""
        return self.scorer.describe()


def load_host_scorer(path: str | Path, *, crop: str, device: str, dtype: str) -> HostScorer:
    """Load ImageReward onto the offload device; `device` "cpu" keeps it off the GPU for good."""
    scorer = load_image_reward(path, dtype=DTYPES[dtype], crop=crop)
    load_device = torch.device("cpu") if device == "cpu" else mm.get_torch_device()
    # Older versions have no CoreModelPatcher.
    patcher = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
    return HostScorer(scorer, patcher(scorer.model, load_device=load_device, offload_device=torch.device("cpu")))
