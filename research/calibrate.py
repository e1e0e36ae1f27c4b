"""Find the tau for a wanted draft share or speed-up, or that of a judge, and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sdvg_core.errors import BadInput

from .protocol import TARGET_ONLY, Configuration
from .statistics import Array, Bootstrap, NumberOf, Record, Table, correlation, drawn, interval

Goal = Literal["draft share", "speed-up"]
STEPS = 201
"""Thresholds between the lowest and the highest that were run."""


def calibrate(
    table: Table, configurations: Sequence[Configuration], goal: Goal, wanted: float, cost: NumberOf
) -> dict[str, Any]:
    """Choose tau for the worst-frame gate. `cost`: of a row, which a speed-up is counted by.

    Between two thresholds that were run, the result of a third is interpolated from both runs, weighted by
    distance. For the draft share this is done score by score: in each run, which drafts would have reached it.
    Returns the `tau`, with the interval that other prompts of the same kind would have given; what it has
    `reached`, with the interval of the mean over as many other prompts; and the `miss`: how far off the goal a
    prompt is on average with a tau chosen without it (leave one out).
    Raises `BadInput` if no threshold between the lowest and the highest one that were run gives what is wanted.
    """
    sweep = sorted((c for c in configurations if c.group == "reward-min"), key=lambda c: c.router.tau)
    if len(sweep) < 2:
        raise BadInput(f"calibration needs at least two thresholds, but got {len(sweep)}; give more with --tau")
    taus = np.array([c.router.tau for c in sweep])
    grid = np.linspace(taus[0], taus[-1], STEPS)
    # What each tau gives is the mean of `top` over the mean of `bottom`: (prompts, taus).
    if goal == "draft share":
        top = np.stack([_shares(table, sweep, taus, tau) for tau in grid], axis=1)
        bottom = np.ones_like(top)
    else:
        spent = np.stack([table.per_prompt(c.name, cost) for c in sweep], axis=1)
        bottom = np.stack([np.interp(grid, taus, row) for row in spent])
        top = np.repeat(table.per_prompt(TARGET_ONLY, cost)[:, None], STEPS, axis=1)

    def given(weights: Array) -> Array:
        """Return what every tau gives, never rising with tau, for the weights of prompts in each draw."""
        curves: Array = np.minimum.accumulate((weights @ top) / (weights @ bottom), axis=1)
        return curves

    def taus_for(weights: Array) -> Array:
        return np.array([np.interp(wanted, curve[::-1], grid[::-1]) for curve in given(weights)])

    weights = table.bootstrap.weights
    most, least = given(weights[:1])[0, [0, -1]]
    if not least <= wanted <= most:
        raise BadInput(
            f"thresholds from {grid[0]:g} to {grid[-1]:g} give a {goal} from {least:.3g} to {most:.3g} here, but "
            f"got {wanted:g}; ask for one in that range or widen --tau"
        )
    found, miss, alone = taus_for(weights), math.nan, np.eye(len(top))
    if len(top) > 1:
        others = zip(taus_for((1 - alone) / (len(alone) - 1)), given(alone), strict=True)
        miss = float(np.mean([abs(np.interp(tau, grid, curve) - wanted) for tau, curve in others]))
    reached = interval(np.array([np.interp(found[0], grid, curve) for curve in given(weights)]))
    return {"goal": goal, "wanted": wanted, "tau": interval(found), "reached": reached, "miss": miss}


def _shares(table: Table, sweep: Sequence[Configuration], taus: Array, tau: float) -> Array:
    """Return each prompt's share of blocks whose draft would reach `tau`, judged by the two runs next to it."""

    def reaching(row: Record) -> float:
        return float(np.mean([score is not None and score >= tau for score in row["worst_scores"]]))

    upper = int(np.clip(np.searchsorted(taus, tau), 1, len(taus) - 1))
    weight = (tau - taus[upper - 1]) / (taus[upper] - taus[upper - 1])
    below, above = (table.per_prompt(sweep[i].name, reaching) for i in (upper - 1, upper))
    shares: Array = (1 - weight) * below + weight * above
    return shares


# --- a judge against the full VAE: the same drafts, decoded and scored by both


def _judge_tau(full: Array, judge: Array, tau: float) -> float:
    """The score of the last draft that the judge keeps if it keeps as many as the full VAE does at `tau`."""
    kept, scores = int((full >= tau).sum()), np.sort(judge)
    return float(scores[-kept]) if kept else float(np.nextafter(scores[-1], np.inf))


def _changed(full: Array, judge: Array, tau: float, judge_tau: float) -> float:
    return float(((judge >= judge_tau) != (full >= tau)).mean())


FIGURES: Mapping[str, Callable[[Array, Array, float], float]] = {
    "shift": lambda full, judge, tau: float((judge - full).mean()),
    "spread": lambda full, judge, tau: float((judge - full).std()),
    "rank_correlation": lambda full, judge, tau: correlation("spearman", full, judge),
    "changed": lambda full, judge, tau: _changed(full, judge, tau, tau),
    "judge_tau": _judge_tau,
    "changed_there": lambda full, judge, tau: _changed(full, judge, tau, _judge_tau(full, judge, tau)),
}
"""What is told of a judge's scores of drafts `(drafts,)` against the full VAE's, by each draft's worst frame.

The mean difference and its standard deviation; the share of drafts decided differently at tau; the judge's tau that
keeps the same share of drafts, and the share decided differently with it.
"""


def compare_judge(records: Sequence[Record], prompts: Sequence[str], tau: float) -> dict[str, Any]:
    """Return `FIGURES`, with the intervals that other prompts of the same kind would have given.

    The drafts are those of the anchor-only videos. Raises `BadInput` if there are no finite scores to compare.
    """
    pairs = [(r["prompt"], (r["worst_score"], r["judge_worst_score"])) for r in records]
    groups = [np.array([s for of, s in pairs if of == prompt and np.isfinite(s).all()]) for prompt in prompts]
    groups = [scores for scores in groups if len(scores)]
    if not groups:
        raise BadInput("there are no drafts to compare the judge by; ask for at least two blocks")
    bootstrap = Bootstrap(len(groups))

    def statistic(name: str) -> Callable[[Any], float]:
        return lambda counts: FIGURES[name](*drawn(groups, counts).T[:2], tau)  # type: ignore[call-arg]

    figures = {name: bootstrap.per_draw(statistic(name)) for name in FIGURES}
    return {"tau": tau, "drafts": sum(map(len, groups)), "prompts": len(groups), **figures}
