"""The room above *the first m blocks*: what every route of a clip would have given, for those who know beforehand.

Over all routes that leave the first block to the target. For each number of target calls: routes at random, the
first ones, the best fixed set of blocks (chosen on all other prompts), and the best route of each video, which
only hindsight knows. Then no more calls on the mean, spread unevenly over videos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .protocol import ROUTE
from .run import Plan
from .statistics import Array, Bootstrap, Interval, interval
from .store import Record

PRICES = np.concatenate(([0.0], np.geomspace(1e-4, 2.0, 200)))
"""What a target call must gain for a video to be given one more. 1 is the best route of a video less its worst.

So a metric may have any unit. It is 1 for the video where the two differ most.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The quality of every route of every video: `quality` (prompts, seeds, routes), `calls` (routes,)."""

    quality: Array
    calls: Array
    first: tuple[int, ...]
    bootstrap: Bootstrap

    def with_calls(self, calls: int) -> Array:
        """Return the quality of the routes with that many target calls."""
        found: Array = self.quality[:, :, self.calls == calls]
        return found

    def mean(self, values: Array) -> Interval:
        """Return the mean over prompts of `(prompts, seeds)`."""
        return self.bootstrap.mean(values.mean(axis=1))


def room_above(rows: Sequence[Record], plan: Plan, quality: str) -> list[dict[str, Any]]:
    """Return what each number of target calls gives, by how they are chosen; nothing if not every route was run."""
    names = [c.name for c in plan.configurations if c.group == ROUTE]
    if len(names) != 2 ** (plan.blocks - 1):
        return []
    found = {(row["configuration"], row["prompt"], row["seed"]): row["metrics"][quality] for row in rows}
    scripts = [name.partition("@")[2] for name in names]
    calls = np.array([script.count("t") for script in scripts])
    values = np.array([[[found[n, prompt, seed] for n in names] for seed in plan.seeds] for prompt in plan.prompts])
    first = tuple(scripts.index("t" * m + "d" * (plan.blocks - m)) for m in range(1, plan.blocks + 1))
    routes = Routes(values, calls, first, Bootstrap(len(plan.prompts)))
    return [_at(routes, m) for m in range(1, plan.blocks + 1)]


def _at(routes: Routes, calls: int) -> dict[str, Any]:
    same, first = routes.with_calls(calls), routes.quality[:, :, routes.first[calls - 1]]
    fixed, best = _fixed(same), same.max(axis=2)
    return {
        "calls": calls,
        "random": routes.mean(same.mean(axis=2)),
        "first": routes.mean(first),
        "fixed": routes.mean(fixed),
        "best": routes.mean(best),
        "first_minus_random": routes.mean(first - same.mean(axis=2)),
        "fixed_minus_first": routes.mean(fixed - first),
        "best_minus_first": routes.mean(best - first),
        "uneven_first_minus_first": _uneven(routes, calls, routes.first, first),
        "uneven_minus_first": _uneven(routes, calls, range(len(routes.calls)), first),
    }


def _fixed(same: Array) -> Array:
    """Return, for each prompt, the route that is best on average over all other prompts: `(prompts, seeds)`."""
    of_prompts = same.mean(axis=1)
    others = of_prompts.sum(axis=0) - of_prompts
    chosen = others.argmax(axis=1)
    fixed: Array = same[np.arange(len(same)), :, chosen]
    return fixed


def _uneven(routes: Routes, calls: int, allowed: Sequence[int], first: Array) -> Interval | None:
    """Return what hindsight gains over `first` with no more calls on the mean.

    Each video takes the route that is best at a price per call; a mean number of calls lies between two prices.
    At no price it takes as many as it is best with, and further calls are left over.
    """
    among = np.array(allowed)
    quality, spent = routes.quality[:, :, among], routes.calls[among]
    prices = PRICES * np.ptp(quality, axis=2).max()
    chosen = [(quality - price * spent).argmax(axis=2) for price in prices]
    gained = np.stack([np.take_along_axis(quality, c[:, :, None], axis=2)[:, :, 0].mean(axis=1) for c in chosen], 1)
    taken = np.stack([spent[c].mean(axis=1) for c in chosen], 1)
    means = routes.bootstrap.means
    curves = zip(means(taken), means(gained), strict=True)
    read_off = np.array([np.interp(calls, cost[::-1], value[::-1]) for cost, value in curves])
    return interval(read_off - means(first.mean(axis=1)))
