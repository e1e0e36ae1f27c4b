"""The configurations of a study, as data: who makes which block, and a name for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from sdvg_core.engine.router import Aggregation, RouterConfig
from sdvg_core.engine.speculate import DrafterContext
from sdvg_core.errors import BadInput

TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY = "target-only", "draft-only", "anchor-only"
ROUTE = "route"

PAPER_TAUS = (-2.5, -2.0, -1.5, -1.0, -0.9, -0.8, -0.7)
"""The thresholds of the paper's Table 1, for ImageReward itself."""

POCKET_TAUS = (-1.5, -1.25, -1.0, -0.7, -0.5, -0.25)
"""For the embedded set, where nine in ten of the drafts' worst frames score between -1.55 and -0.3."""

PAPER_SCORES, POCKET_SCORES = (0.566, 1.071), (-0.95, 0.45)
"""Mean and spread of the scores that `percentile` expects before it has seen any."""

EVERY, RATES, OPEN_RATES = (3,), (0.2, 0.4, 0.6, 0.8), (0.5, 0.7)
REPAIR_STEPS, DRAFT_SHARES = (1, 2, 3), (0.5, 0.72)
DIFFERENCES = (-1.5, -1.0, -0.75, -0.5, -0.25, -0.1)
"""For the relative gate: how far the worst frame may fall below the last committed one."""

MOST_BLOCKS = 10
"""Of every route: each block more doubles their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way of making the videos.

    `group`: configurations of a group differ in one number; a plot joins them by a line. A `random` router draws
    per prompt and seed. `target_schedule`: of the target's blocks after the clip's first one; its own if empty.
    """

    name: str
    group: str
    router: RouterConfig = field(default_factory=RouterConfig)
    drafter_context: DrafterContext = "committed"
    target_schedule: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the same as JSON values."""
        return asdict(self)


def protocol(
    blocks: int,
    taus: Sequence[float],
    *,
    timesteps: Sequence[float] = (1000.0, 937.5, 833.33, 625.0),
    scores: tuple[float, float] = POCKET_SCORES,
) -> tuple[Configuration, ...]:
    """Return every configuration for videos of `blocks` blocks, ordered so that similar routes are together.

    `taus`: thresholds of the reward sweeps. `timesteps`: of both models; a handover leaves the target at least one
    step. `scores`: the mean and spread that `percentile` starts with.
    """
    middle, steps = sorted(taus)[len(taus) // 2], len(timesteps)
    half, few = steps // 2, few_steps(timesteps)
    return (
        Configuration(name=TARGET_ONLY, group="ends", router=RouterConfig(policy="always-target")),
        *(_first(m) for m in range(2, blocks)),
        *(_first(m, handover=half) for m in range(2, blocks + 1) if half),
        *(_first(blocks, handover=k) for k in range(1, steps) if k != half),
        *(_first(m, schedule=few[0]) for m in range(2, blocks + 1) if few),
        *(_first(blocks, schedule=schedule) for schedule in few[1:]),
        *(_every(n, blocks) for n in EVERY if n < blocks),
        *(_random(rate, protected=True) for rate in RATES),
        Configuration(name=ANCHOR_ONLY, group="anchor", router=RouterConfig(policy="anchor-only")),
        *(_reward(tau, "min") for tau in sorted(taus)),
        *(_reward(tau, "mean") for tau in sorted(taus)),
        *(_relative(tau) for tau in DIFFERENCES),
        *(_repair(k, middle) for k in REPAIR_STEPS if k < steps),
        *(_percentile(share, scores) for share in DRAFT_SHARES),
        Configuration(name=DRAFT_ONLY, group="ends", router=RouterConfig(policy="always-draft", forced_blocks=0)),
        *(_random(rate, protected=False) for rate in OPEN_RATES),
        *(_own(tau) for tau in _spread(sorted(taus))),
    )


def few_steps(timesteps: Sequence[float]) -> tuple[str, ...]:
    """Return shorter schedules for the target, as text: its first and last step, and its first alone."""
    if len(timesteps) < 3:
        return ()
    return f"{timesteps[0]:g},{timesteps[-1]:g}", f"{timesteps[0]:g}"


def every_route(blocks: int) -> tuple[Configuration, ...]:
    """Return all routes of models for the blocks after the first, which is the target's.

    Raises `BadInput` if there are too many.
    """
    if blocks > MOST_BLOCKS:
        raise BadInput(
            f"every route of {blocks} blocks would be {2 ** (blocks - 1)} videos a prompt; ask for at most "
            f"{MOST_BLOCKS} blocks, such as --blocks 7"
        )
    scripts = ("t" + "".join(letters) for letters in product("td", repeat=blocks - 1))
    return tuple(
        Configuration(name=f"{ROUTE}@{script}", group=ROUTE, router=RouterConfig(policy="scripted", script=script))
        for script in scripts
    )


def pick(configurations: Sequence[Configuration], patterns: Sequence[str]) -> tuple[Configuration, ...]:
    """Return the configurations that match a pattern such as `reward-min@*`; all of them if there is no pattern.

    Raises `BadInput` for a pattern that matches none.
    """
    names = [configuration.name for configuration in configurations]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"a name or pattern must match a configuration, but {pattern!r} fits none; "
                f"choose among {', '.join(names)}"
            )
    fits = [c for c in configurations if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]
    return tuple(fits)


def _first(m: int, *, handover: int = 0, schedule: str = "") -> Configuration:
    passes = len(schedule.split(",")) if schedule else 0
    group = f"handover-{handover}" if handover else f"passes-{passes}" if passes else "first"
    router = RouterConfig(policy="first", forced_blocks=m, handover=handover)
    return Configuration(name=f"{group}@{m}", group=group, router=router, target_schedule=schedule)


def _every(n: int, blocks: int) -> Configuration:
    script = (("t" + "d" * (n - 1)) * blocks)[:blocks]
    return Configuration(name=f"every@{n}", group="every", router=RouterConfig(policy="scripted", script=script))


def _random(rate: float, *, protected: bool) -> Configuration:
    group = "random" if protected else "random-open"
    router = RouterConfig(policy="random", rate=rate, forced_blocks=int(protected))
    return Configuration(name=f"{group}@{rate:g}", group=group, router=router)


def _reward(tau: float, aggregation: Aggregation) -> Configuration:
    group = f"reward-{aggregation}"
    router = RouterConfig(tau=tau, aggregation=aggregation)
    return Configuration(name=f"{group}@{tau:g}", group=group, router=router)


def _relative(tau: float) -> Configuration:
    router = RouterConfig(policy="relative", tau=tau)
    return Configuration(name=f"relative@{tau:g}", group="relative", router=router)


def _repair(step: int, tau: float) -> Configuration:
    return Configuration(name=f"repair-{step}@{tau:g}", group="repair", router=RouterConfig(tau=tau, handover=step))


def _percentile(share: float, scores: tuple[float, float]) -> Configuration:
    router = RouterConfig(policy="percentile", draft_share=share, prior_mean=scores[0], prior_std=scores[1])
    return Configuration(name=f"percentile@{share:g}", group="percentile", router=router)


def _own(tau: float) -> Configuration:
    return Configuration(name=f"own@{tau:g}", group="own", router=RouterConfig(tau=tau), drafter_context="own")


def _spread(taus: Sequence[float]) -> tuple[float, ...]:
    """Return the lowest, the middle and the second highest: enough to see whether two curves differ."""
    return tuple(dict.fromkeys((taus[0], taus[len(taus) // 2], taus[max(len(taus) - 2, 0)])))
