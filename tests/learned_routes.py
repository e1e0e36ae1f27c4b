"""A learned route of made-up numbers, for tests of what uses one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from research.learn import price_table, write_learned
from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.pipeline.identity import fingerprint
from sdvg_core.pipeline.learned import GainModel, prompt_hash

SHAPE = 1 - (1 - np.linspace(0, 1, 9)) ** 1.7


def a_route(width: int = 4, *, gains: dict[str, float] | None = None, **changes: Any) -> GainModel:
    """Return a route whose prompts gain 1, plus the mean of their embedding, unless `gains` has them."""
    given = {
        "name": "route.safetensors",
        "mean": np.zeros(width),
        "deviation": np.ones(width),
        "weights": np.full(width, 1 / width),
        "bias": 1.0,
        "shape": SHAPE,
        "measured": {prompt_hash(prompt): gain for prompt, gain in (gains or {}).items()},
        "models": {},
        "metric": "reward_mean",
        "gain": (0.3, 0.2, 0.4),
        **changes,
    }
    return GainModel(**({} if "prices" in changes else {"prices": usual_prices()}), **given)


@cache  # it takes most of a second, and is the same for any width
def usual_prices() -> np.ndarray:
    return price_table(a_route(prices=np.zeros((1, 2))), np.random.default_rng(3).normal(1.0, 1.0, 40))


def models_of(files: ModelFiles) -> dict[str, str]:
    return {role: fingerprint(getattr(files, role)) for role in ("drafter", "target", "text_encoder")}


def written(folder: Path, route: GainModel) -> Path:
    path = folder / "route.safetensors"
    write_learned(path, route)
    return path
