"""Means with bootstrap intervals over prompts, and paired comparisons of rows.

Prompts are resampled, each with all its seeds, and every figure is computed from the same draws. So figures of two
configurations stay paired, and the interval of a difference is that of the difference itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .protocol import ANCHOR_ONLY, DRAFT_ONLY, TARGET_ONLY, Configuration

Array = npt.NDArray[np.float64]
Record = dict[str, Any]
NumberOf = Callable[[Record], float]
RESAMPLES = 12_000
LEVEL = 0.95
ENOUGH = 10
"""Prompts. The interval of fewer is far too narrow, so none is given, and nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def as_json(figures: Any, prompts: int) -> Any:
    """Return figures as JSON values; of fewer prompts than `ENOUGH`, without the ends of their intervals."""
    if isinstance(figures, Interval):
        return asdict(figures) | ({} if prompts >= ENOUGH else {"low": None, "high": None})
    if isinstance(figures, Mapping):
        return {name: as_json(value, prompts) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [as_json(value, prompts) for value in figures]
    return figures


def too_few(prompts: int) -> str:
    """Return the sentence on so few prompts; empty if there are enough."""
    if prompts >= ENOUGH:
        return ""
    what = "1 prompt is" if prompts == 1 else f"{prompts} prompts are"
    return f"{what} too few for an interval, so nothing is claimed beyond them; ask for {ENOUGH} or more"


class Bootstrap:
    """The draws: the weight of each of `prompts` prompts in each resample; row 0 is the sample itself."""

    def __init__(self, prompts: int, seed: int = 0) -> None:
        drawn = np.random.default_rng(seed).multinomial(prompts, [1 / prompts] * prompts, size=RESAMPLES)
        self.weights: Array = np.concatenate([np.ones((1, prompts), dtype=np.int64), drawn]) / prompts

    def means(self, values: Array) -> Array:
        """Return the mean over prompts in every draw, `(draws, ...)`, of `(prompts, ...)`; NaN is left out."""
        counted = np.isfinite(values)
        sums: Array = np.tensordot(self.weights, np.where(counted, values, 0.0), axes=1)
        return (
            sums if counted.all() else _divide(sums, np.tensordot(self.weights, counted.astype(np.float64), axes=1))
        )

    def mean(self, values: Array) -> Interval:
        figures = interval(self.means(values))
        assert figures is not None
        return figures


def interval(draws: Array) -> Interval | None:
    """Return the figure of the sample, `draws[0]`, with the interval of the resamples; None if it is undefined.

    Resamples where it is undefined are skipped.
    """
    rest = draws[1:][np.isfinite(draws[1:])]
    if not np.isfinite(draws[0]) or not len(rest):
        return None
    low, high = np.quantile(rest, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(draws[0]), float(low), float(high))


# --- what a row costs, and how good it is


def metric(name: str) -> NumberOf:
    """Return a function that reads a metric from a row; NaN if it has no value for that video."""
    return lambda row: float(row["metrics"][name] if row["metrics"][name] is not None else np.nan)


def cost_with(weights: Mapping[str, float]) -> NumberOf:
    """Return a function that gives the cost of a row, in target blocks: every pass by its weight."""
    return lambda row: sum(weight * row["passes"][name] for name, weight in weights.items())


# --- rows, compared


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows by configuration and by (prompt, seed), and the draws of prompts behind every interval."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: Mapping[str, Mapping[tuple[str, int], Record]]
    bootstrap: Bootstrap

    def per_prompt(self, configuration: str, number_of: Callable[[Record], float | list[float]]) -> Array:
        """Return a number (or several) per prompt, the mean over its seeds: `(prompts, ...)`. NaN is left out."""
        rows = self.rows[configuration]
        numbers = [[number_of(rows[prompt, seed]) for seed in self.seeds] for prompt in self.prompts]
        values = np.array(numbers, dtype=np.float64)
        counted = np.isfinite(values)
        means: Array = values.mean(axis=1)
        return means if counted.all() else _divide(np.where(counted, values, 0.0).sum(axis=1), counted.sum(axis=1))

    def means(self, configuration: str, number_of: NumberOf) -> Array:
        return self.bootstrap.means(self.per_prompt(configuration, number_of))

    def mean(self, configuration: str, number_of: NumberOf) -> Interval:
        return self.bootstrap.mean(self.per_prompt(configuration, number_of))

    def median(self, configuration: str, number_of: NumberOf) -> float:
        """Return the median over prompts."""
        return float(np.nanmedian(self.per_prompt(configuration, number_of)))

    def left_out(self, configuration: str, number_of: NumberOf) -> int:
        """Return the number of prompts without a value."""
        return int(np.isnan(self.per_prompt(configuration, number_of)).sum())

    def difference(self, configuration: str, other: str, number_of: NumberOf) -> Interval:
        """Return by how much a configuration is above another, pair by pair."""
        return self.bootstrap.mean(self.per_prompt(configuration, number_of) - self.per_prompt(other, number_of))


def _divide(sums: Array, counts: npt.NDArray[Any]) -> Array:
    """Return means; NaN where nothing is counted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Array = sums / counts
    return means


def make_table(rows: Sequence[Record], prompts: Sequence[str], seeds: Sequence[int]) -> Table:
    """Arrange the rows, which must exist for every configuration, prompt and seed."""
    arranged: dict[str, dict[tuple[str, int], Record]] = {}
    for row in rows:
        arranged.setdefault(row["configuration"], {})[row["prompt"], row["seed"]] = row
    return Table(tuple(prompts), tuple(seeds), arranged, Bootstrap(len(prompts)))


CURVES: Mapping[str, tuple[str, ...]] = {
    "first": (TARGET_ONLY, ANCHOR_ONLY, DRAFT_ONLY),
    "random": (TARGET_ONLY, ANCHOR_ONLY),
}
"""The groups that others are compared with at their own cost, each with its ends.

A curve is mean quality over mean cost: of the first m blocks by the target, and of random routing that leaves it
the first block. Between its two nearest points it is interpolated: the result of tossing a coin between those two.
"""


def curve_of(group: str, configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Return the configurations of a curve: a group with its ends. Empty if the group was not run."""
    members = tuple(c.name for c in configurations if c.group == group)
    ends = tuple(c.name for c in configurations if c.name in CURVES[group])
    return (*ends, *members) if members else ()


def against_curve(
    table: Table, name: str, curve: Sequence[str], cost_of: NumberOf, quality_of: NumberOf
) -> Interval | None:
    """Return how much better a configuration is than the curve at its own mean cost.

    Every resample draws the same prompts for both, and interpolates again, so the interval includes the uncertainty
    of costs and qualities. None if its cost lies beyond the ends of the curve, where there is nothing to compare.
    """
    if len(curve) < 2:
        return None
    cost = table.means(name, cost_of)
    quality = table.means(name, quality_of)
    costs, qualities = (np.stack([table.means(c, of) for c in curve], axis=1) for of in (cost_of, quality_of))
    if not costs[0].min() <= cost[0] <= costs[0].max():
        return None
    order = np.argsort(costs, axis=1, kind="stable")
    x, y = (np.take_along_axis(of, order, axis=1) for of in (costs, qualities))
    return interval(quality - np.array([np.interp(at, xs, ys) for at, xs, ys in zip(cost, x, y, strict=True)]))
