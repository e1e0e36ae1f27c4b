"""Compare rows, paired by prompt and seed.

A configuration is compared with target-only and draft-only directly, and with two curves of mean quality over mean
cost at its own cost: the first m blocks by the target, and random routing that leaves it the first block. A curve
is interpolated between its two nearest points: the result of tossing a coin between those two. Every resample
draws the same prompts for configuration and curve, and interpolates again, so the interval includes the
uncertainty of costs and qualities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .costs import NumberOf
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, TARGET_ONLY, Configuration
from .statistics import Array, Bootstrap, Interval, interval
from .store import Record


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows by configuration and by (prompt, seed), and the draws of prompts behind every interval."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: Mapping[str, Mapping[tuple[str, int], Record]]
    bootstrap: Bootstrap

    def per_prompt(self, configuration: str, number_of: Callable[[Record], float | list[float]]) -> Array:
        """Return a number (or several) per prompt, the mean over its seeds: `(prompts, ...)`."""
        rows = self.rows[configuration]
        values = [[number_of(rows[prompt, seed]) for seed in self.seeds] for prompt in self.prompts]
        means: Array = np.array(values, dtype=np.float64).mean(axis=1)
        return means

    def mean(self, configuration: str, number_of: NumberOf) -> Interval:
        """Return the mean of a number over all rows of a configuration."""
        return self.bootstrap.mean(self.per_prompt(configuration, number_of))

    def difference(self, configuration: str, other: str, number_of: NumberOf) -> Interval:
        """Return by how much a configuration is above another, pair by pair."""
        values = self.per_prompt(configuration, number_of) - self.per_prompt(other, number_of)
        return self.bootstrap.mean(values)

    def ratio(self, configuration: str, other: str, number_of: NumberOf) -> Interval | None:
        """Return the mean of `other` over that of the configuration, as a speed-up is counted."""
        own, others = (self.bootstrap.means(self.per_prompt(c, number_of)) for c in (configuration, other))
        return interval(others / own)


def make_table(rows: Sequence[Record], prompts: Sequence[str], seeds: Sequence[int]) -> Table:
    """Arrange the rows, which must exist for every configuration, prompt and seed."""
    arranged: dict[str, dict[tuple[str, int], Record]] = {}
    for row in rows:
        arranged.setdefault(row["configuration"], {})[row["prompt"], row["seed"]] = row
    return Table(tuple(prompts), tuple(seeds), arranged, Bootstrap(len(prompts)))


def metric(name: str) -> NumberOf:
    """Return a function that reads a metric from a row."""
    return lambda row: float(row["metrics"][name])


CURVES: Mapping[str, tuple[str, ...]] = {
    "first": (TARGET_ONLY, ANCHOR_ONLY, DRAFT_ONLY),
    "random": (TARGET_ONLY, ANCHOR_ONLY),
}
"""The groups that others are compared with, each with its ends."""


def curve_of(group: str, configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Return the configurations of a curve: a group with its ends. Empty if the group was not run."""
    members = tuple(c.name for c in configurations if c.group == group)
    ends = tuple(c.name for c in configurations if c.name in CURVES[group])
    return (*ends, *members) if members else ()


def against_curve(
    table: Table, name: str, curve: Sequence[str], cost_of: NumberOf, quality_of: NumberOf
) -> Interval | None:
    """Return how much better a configuration is than the curve at its own mean cost.

    None if its cost lies beyond the ends of the curve, where there is nothing to compare with.
    """
    if len(curve) < 2:
        return None
    means = table.bootstrap.means
    costs = means(np.stack([table.per_prompt(c, cost_of) for c in curve], axis=1))
    qualities = means(np.stack([table.per_prompt(c, quality_of) for c in curve], axis=1))
    cost, quality = means(table.per_prompt(name, cost_of)), means(table.per_prompt(name, quality_of))
    if not costs[0].min() <= cost[0] <= costs[0].max():
        return None
    return interval(quality - _read_off(cost, costs, qualities))


def _read_off(cost: Array, costs: Array, qualities: Array) -> Array:
    """Interpolate in every draw: `cost` (draws,), `costs` and `qualities` (draws, points). Flat beyond the ends."""
    order = np.argsort(costs, axis=1, kind="stable")
    x, y = (np.take_along_axis(of, order, axis=1) for of in (costs, qualities))
    right = np.clip((x < cost[:, None]).sum(axis=1), 1, x.shape[1] - 1)
    draws = np.arange(len(cost))
    (x0, x1), (y0, y1) = ((of[draws, right - 1], of[draws, right]) for of in (x, y))
    share = np.where(x1 > x0, np.clip((cost - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0, 1.0), cost > x1)
    read_off: Array = y0 + share * (y1 - y0)
    return read_off
