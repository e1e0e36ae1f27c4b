"""Means with bootstrap intervals over prompts, and paired comparisons of two figures.

Prompts are resampled, each with all its seeds, and every figure is computed from the same draws. So figures of two
configurations stay paired, and the interval of a difference is that of the difference itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95
ENOUGH = 10
"""Prompts. The interval of fewer is far too narrow, so none is given, and nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return it as JSON values."""
        return asdict(self)

    @property
    def side(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, 0 if it spans zero."""
        return int(self.low > 0) - int(self.high < 0)


def as_told(figures: Any, prompts: int) -> Any:
    """Return figures as JSON values; of fewer prompts than `ENOUGH`, without the ends of their intervals."""
    if isinstance(figures, Interval):
        return figures.as_dict() if prompts >= ENOUGH else {"value": figures.value, "low": None, "high": None}
    if isinstance(figures, Mapping):
        return {name: as_told(value, prompts) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [as_told(value, prompts) for value in figures]
    return figures


def in_words(figure: Interval, prompts: int) -> str:
    """Return a figure with its interval; of fewer prompts than `ENOUGH`, without."""
    return f"{figure.value:.3g}" + (f" [{figure.low:.3g}, {figure.high:.3g}]" if prompts >= ENOUGH else "")


def too_few(prompts: int) -> str:
    """Return the sentence on so few prompts; empty if there are enough."""
    if prompts >= ENOUGH:
        return ""
    what = "1 prompt is" if prompts == 1 else f"{prompts} prompts are"
    return f"{what} too few for an interval, so nothing is claimed beyond them; ask for {ENOUGH} or more"


class Bootstrap:
    """The draws: the weight of each of `prompts` prompts in each resample; row 0 is the sample itself."""

    def __init__(self, prompts: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        generator = np.random.default_rng(seed)
        drawn = generator.multinomial(prompts, [1 / prompts] * prompts, size=resamples)
        self.weights: Array = np.concatenate([np.ones((1, prompts)), drawn]) / prompts

    def means(self, values: Array) -> Array:
        """Return the mean over prompts in every draw, `(draws, ...)`, of `(prompts, ...)`."""
        return np.tensordot(self.weights, values, axes=1)

    def mean(self, values: Array) -> Interval:
        """Return the mean of one number per prompt."""
        found = interval(self.means(values))
        assert found is not None
        return found

    def per_draw(self, statistic: Callable[[npt.NDArray[np.int64]], float], draws: int = 1000) -> Interval | None:
        """Return a statistic that is not a mean; `statistic` gets the number of draws of each prompt."""
        prompts = self.weights.shape[1]
        counts = np.rint(self.weights[: draws + 1] * prompts).astype(np.int64)
        return interval(np.array([statistic(row) for row in counts]))


def interval(draws: Array) -> Interval | None:
    """Return the figure of the sample, `draws[0]`, with the interval of the resamples; None if it is undefined.

    Resamples where it is undefined are skipped.
    """
    rest = draws[1:][np.isfinite(draws[1:])]
    if not np.isfinite(draws[0]) or not len(rest):
        return None
    low, high = np.quantile(rest, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(draws[0]), float(low), float(high))


def pearson(x: Array, y: Array) -> float:
    """Return the linear correlation; NaN if either does not vary."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def spearman(x: Array, y: Array) -> float:
    """Return the correlation of the ranks."""
    return pearson(ranks(x), ranks(y))


def ranks(values: Array) -> Array:
    """Return each value's rank from 1; equal values share the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Array = last - (counts - 1) / 2
    return mean_rank[where]
