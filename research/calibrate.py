"""Find the tau for a wanted draft share or speed-up, and how certain it is.

Between two thresholds that were run, the result of a third is interpolated from both runs, weighted by distance.
For the draft share this is done score by score: in each run, which drafts would have reached the third threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from sdvg_core.errors import BadInput
from sdvg_core.report.summary import count

from .compare import Table
from .costs import seconds
from .protocol import TARGET_ONLY, Configuration
from .statistics import Array, Bootstrap, Interval, as_told, in_words, interval, too_few
from .store import Record

Goal = Literal["draft share", "speed-up"]
STEPS = 201


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold for a goal.

    `tau`: with the interval that other prompts of the same kind would have given. `reached`: the result of that
    tau, with the interval of the mean over as many other prompts. `miss`: how far off the goal a prompt is on
    average with a tau chosen without it (leave one out).
    """

    goal: Goal
    wanted: float
    tau: Interval
    reached: Interval
    miss: float
    prompts: int

    def __str__(self) -> str:
        tau, reached = self.tau, self.reached
        return (
            f"tau {in_words(tau, self.prompts)} for a {self.goal} of {self.wanted:.3g}: over "
            f"{count(self.prompts, 'prompt')} it gives {in_words(reached, self.prompts)}; "
            f"{too_few(self.prompts) or self._certainty()}"
        )

    def _certainty(self) -> str:
        return (
            "in brackets 95 % intervals; a single prompt that was not used to choose it is off by "
            f"{self.miss:.2g} on average"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        figures = {"tau": self.tau, "reached": self.reached}
        return {**asdict(self), **as_told(figures, self.prompts)}


def calibrate(table: Table, configurations: Sequence[Configuration], goal: Goal, wanted: float) -> Calibration:
    """Choose tau for the worst-frame gate.

    Raises `BadInput` if no threshold between the lowest and the highest one that were run gives what is wanted.
    """
    sweep = sorted((c for c in configurations if c.group == "reward-min"), key=lambda c: c.router.tau)
    if len(sweep) < 2:
        raise BadInput(f"calibration needs at least two thresholds, but got {len(sweep)}; give more with --tau")
    taus = np.array([c.router.tau for c in sweep])
    grid = np.linspace(taus[0], taus[-1], STEPS)
    if goal == "draft share":
        top = np.stack([_shares(table, sweep, taus, tau) for tau in grid], axis=1)
        bottom = np.ones((len(table.prompts), 1))
    else:
        spent = np.stack([table.per_prompt(c.name, seconds) for c in sweep], axis=1)
        top = table.per_prompt(TARGET_ONLY, seconds)[:, None]
        bottom = np.stack([np.interp(grid, taus, row) for row in spent])
    return _fit(_Curve(top, bottom, grid), goal, wanted, table.bootstrap)


def _shares(table: Table, sweep: Sequence[Configuration], taus: Array, tau: float) -> Array:
    """Return each prompt's share of blocks whose draft would reach `tau`, judged by the two runs next to it."""
    upper = int(np.clip(np.searchsorted(taus, tau), 1, len(taus) - 1))
    weight = (tau - taus[upper - 1]) / (taus[upper] - taus[upper - 1])
    below, above = (table.per_prompt(sweep[i].name, _reaching(tau)) for i in (upper - 1, upper))
    shares: Array = (1 - weight) * below + weight * above
    return shares


def _reaching(tau: float) -> Callable[[Record], float]:
    def share(row: Record) -> float:
        return float(np.mean([score is not None and score >= tau for score in row["worst_scores"]]))

    return share


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """What each tau of `grid` gives: the mean of `top` over the mean of `bottom`.

    `top`, `bottom`: `(prompts, taus)`, or `(prompts, 1)` for what does not depend on tau.
    """

    top: Array
    bottom: Array
    grid: Array

    def values(self, weights: Array) -> Array:
        """Return `(draws, taus)` for the weights of prompts in each draw, never rising with tau."""
        values: Array = np.minimum.accumulate((weights @ self.top) / (weights @ self.bottom), axis=1)
        return values

    def taus(self, weights: Array, wanted: float) -> Array:
        """Return the tau that gives what is wanted in each draw."""
        return np.array([np.interp(wanted, row[::-1], self.grid[::-1]) for row in self.values(weights)])

    def at(self, tau: float, weights: Array) -> Array:
        """Return what one tau gives in each draw."""
        return np.array([np.interp(tau, self.grid, row) for row in self.values(weights)])


def _fit(curve: _Curve, goal: Goal, wanted: float, bootstrap: Bootstrap) -> Calibration:
    weights = bootstrap.weights
    most, least = curve.values(weights[:1])[0, [0, -1]]
    if not least <= wanted <= most:
        raise BadInput(
            f"thresholds from {curve.grid[0]:g} to {curve.grid[-1]:g} give a {goal} from {least:.3g} to {most:.3g} "
            f"here, but got {wanted:g}; ask for one in that range or widen --tau"
        )
    taus = curve.taus(weights, wanted)
    chosen, reached = interval(taus), interval(curve.at(taus[0], weights))
    assert chosen is not None
    assert reached is not None
    return Calibration(goal, wanted, chosen, reached, _miss(curve, wanted), weights.shape[1])


def _miss(curve: _Curve, wanted: float) -> float:
    """Return how far off a prompt is, on average, with the tau of all the others."""
    alone = np.eye(len(curve.top) if len(curve.top) > 1 else len(curve.bottom))
    others = (1 - alone) / max(len(alone) - 1, 1)
    if len(alone) == 1:
        return float("nan")
    pairs = zip(curve.taus(others, wanted), alone, strict=True)
    return float(np.mean([abs(curve.at(tau, one[None])[0] - wanted) for tau, one in pairs]))
