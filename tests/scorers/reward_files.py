"""ImageReward checkpoints with random weights, written for a test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from image_reward_cases import CASES, random_weights, vocabulary
from safetensors.torch import save_file
from torch import Tensor

from sdvg_core.scorers.blip import ImageRewardConfig, used_shapes


def case_config(case: str) -> ImageRewardConfig:
    return ImageRewardConfig(**{"vocabulary": len(vocabulary(case)) + 2, **CASES[case]})


def published_shapes(config: ImageRewardConfig) -> dict[str, tuple[int, ...]]:
    """All that lies in a checkpoint, BLIP's contrastive projections included, which no score needs."""
    shapes = used_shapes(config)
    for name, width in (("vision", config.vision_width), ("text", config.text_width)):
        shapes |= {f"blip.{name}_proj.weight": (256, width), f"blip.{name}_proj.bias": (256,)}
    return shapes


def case_state(case: str) -> dict[str, Tensor]:
    return {k: torch.from_numpy(w) for k, w in random_weights(published_shapes(case_config(case))).items()}


def write_vocabulary(path: Path, tokens: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


def write_case(folder: Path, case: str, suffix: str = ".safetensors") -> Path:
    """Write the case's weights, with the vocabulary beside them. Only safetensors can tell the heads."""
    path = folder / f"{case}{suffix}"
    if suffix == ".safetensors":
        config = case_config(case)
        heads = {"vision_heads": config.vision_heads, "text_heads": config.text_heads}
        save_file(case_state(case), path, metadata={"config": json.dumps({"image_reward": heads})})
    else:
        torch.save(case_state(case), path)
    write_vocabulary(folder / "vocab.txt", vocabulary(case))
    return path
