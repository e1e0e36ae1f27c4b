"""Find the tau for a wanted draft share, and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sdvg_core.errors import BadInput

from .protocol import Configuration
from .statistics import Array, Record, Table, interval

STEPS = 201
"""Thresholds between the lowest and the highest that were run."""


def calibrate(table: Table, configurations: Sequence[Configuration], wanted: float) -> dict[str, Any]:
    """Choose tau for the worst-frame gate, for a share of drafts among all blocks.

    Between two thresholds that were run, the result of a third is interpolated from both runs, weighted by
    distance, score by score: in each run, which drafts would have reached it.
    Returns the `tau`, with the interval that other prompts of the same kind would have given; what it has
    `reached`, with the interval of the mean over as many other prompts; and the `miss`: how far off the goal a
    prompt is on average with a tau chosen without it (leave one out).
    Raises `BadInput` if no threshold between the lowest and the highest one that were run gives what is wanted.
    """
    sweep = sorted((c for c in configurations if c.group == "reward-min"), key=lambda c: c.router.tau)
    if len(sweep) < 2:
        raise BadInput(f"calibration needs two thresholds, but got {len(sweep)}; give more with --tau")
    taus = np.array([c.router.tau for c in sweep])
    grid = np.linspace(taus[0], taus[-1], STEPS)
    shares = np.stack([_shares(table, sweep, taus, tau) for tau in grid], axis=1)  # (prompts, taus)

    def given(weights: Array) -> Array:
        """Return what every tau gives, never rising with tau, for the weights of prompts in each draw."""
        curves: Array = np.minimum.accumulate(weights @ shares, axis=1)
        return curves

    def taus_for(weights: Array) -> Array:
        return np.array([np.interp(wanted, curve[::-1], grid[::-1]) for curve in given(weights)])

    weights = table.bootstrap.weights
    most, least = given(weights[:1])[0, [0, -1]]
    if not least <= wanted <= most:
        limits = f"{least:.3g} to {most:.3g}"
        raise BadInput(
            f"the draft share {wanted:g} lies outside {limits} for these thresholds; change it or widen --tau"
        )
    found, miss, alone = taus_for(weights), math.nan, np.eye(len(shares))
    if len(shares) > 1:
        others = zip(taus_for((1 - alone) / (len(alone) - 1)), given(alone), strict=True)
        miss = float(np.mean([abs(np.interp(tau, grid, curve) - wanted) for tau, curve in others]))
    reached = interval(np.array([np.interp(found[0], grid, curve) for curve in given(weights)]))
    return {"wanted": wanted, "tau": interval(found), "reached": reached, "miss": miss}


def _shares(table: Table, sweep: Sequence[Configuration], taus: Array, tau: float) -> Array:
    """Return each prompt's share of blocks whose draft would reach `tau`, judged by the two runs next to it."""

    def reaching(row: Record) -> float:
        return float(np.mean([score is not None and score >= tau for score in row["worst_scores"]]))

    upper = int(np.clip(np.searchsorted(taus, tau), 1, len(taus) - 1))
    weight = (tau - taus[upper - 1]) / (taus[upper] - taus[upper - 1])
    below, above = (table.per_prompt(sweep[i].name, reaching) for i in (upper - 1, upper))
    shares: Array = (1 - weight) * below + weight * above
    return shares
