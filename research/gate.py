"""Does the score of a draft know what the target would have gained on its block?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .statistics import Array, Bootstrap, Interval, pearson, spearman
from .store import Record

SCORES = ("worst_score", "mean_score")
CORRELATIONS = {"pearson": pearson, "spearman": spearman}


def gate_correlations(gains: Sequence[Record], prompts: Sequence[str]) -> dict[str, Interval | None]:
    """Return the correlations of scores and gains over all blocks, by name of score and correlation.

    A gate that knows where the target helps has a correlation well below zero: low score, large gain. None if
    either does not vary; an empty result without qualities.
    """
    known = [gain for gain in gains if gain["draft_quality"] is not None]
    if not known:
        return {}
    bootstrap = Bootstrap(len(prompts))
    found: dict[str, Interval | None] = {}
    for score in SCORES:
        groups = [points(known, score, prompt) for prompt in prompts]
        for name, correlation in CORRELATIONS.items():
            found[f"{score}_{name}"] = bootstrap.per_draw(_of_draw(groups, correlation))
    return found


def points(gains: Sequence[Mapping[str, Any]], score: str, prompt: str | None = None) -> Array:
    """Return (score, gain) of every block, of one prompt or of all: `(n, 2)`."""
    chosen = [gain for gain in gains if prompt in (None, gain["prompt"])]
    pairs = [(gain[score], gain["target_quality"] - gain["draft_quality"]) for gain in chosen]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _of_draw(
    groups: Sequence[Array], correlation: Callable[[Array, Array], float]
) -> Callable[[npt.NDArray[np.int64]], float]:
    def correlate(counts: npt.NDArray[np.int64]) -> float:
        drawn = [np.repeat(group, count, axis=0) for group, count in zip(groups, counts, strict=True)]
        scores, gains = np.concatenate(drawn).T
        return correlation(scores, gains)

    return correlate
