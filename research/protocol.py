"""The configurations of a study, as data: who makes which block, and a name for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.types import DrafterContext
from sdvg_core.errors import BadInput

TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY = "target-only", "draft-only", "anchor-only"

PAPER_TAUS = (-2.5, -2.0, -1.5, -1.0, -0.9, -0.8, -0.7)
"""The thresholds of the paper's Table 1, for ImageReward itself."""

POCKET_TAUS = (-1.5, -1.25, -1.0, -0.7, -0.5, -0.25)
"""For the embedded set, where nine in ten of the drafts' worst frames score between -1.55 and -0.3."""

EVERY, RATES, OPEN_RATES, REPAIR_STEPS = 3, (0.2, 0.4, 0.6, 0.8), (0.5, 0.7), (1, 2, 3)
DIFFERENCES = (-1.5, -1.0, -0.75, -0.5, -0.25, -0.1)
"""For the relative gate: how far the worst frame may fall below the last committed one."""


@dataclass(frozen=True, slots=True)
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


def protocol(
    blocks: int, taus: Sequence[float], *, timesteps: Sequence[float] = (1000.0, 937.5, 833.33, 625.0)
) -> tuple[Configuration, ...]:
    """Return every configuration for videos of `blocks` blocks, ordered so that similar routes are together.

    `taus`: thresholds of the reward sweeps. `timesteps`: of both models; a handover leaves the target at least one
    step.
    """
    return tuple(_configurations(blocks, sorted(taus), timesteps))


def _configurations(blocks: int, taus: list[float], timesteps: Sequence[float]) -> Iterator[Configuration]:
    steps, middle = len(timesteps), taus[len(taus) // 2]
    half, few = steps // 2, few_steps(timesteps)
    yield Configuration(TARGET_ONLY, "ends", RouterConfig(policy="always-target"))
    for m in range(2, blocks):
        yield Configuration(f"first@{m}", "first", _first(m))
    for m, k in [(m, half) for m in range(2, blocks + 1) if half] + [
        (blocks, k) for k in range(1, steps) if k != half
    ]:
        yield Configuration(f"handover-{k}@{m}", f"handover-{k}", _first(m, k))
    for m, schedule in [(m, few[0]) for m in range(2, blocks + 1) if few] + [(blocks, one) for one in few[1:]]:
        group = f"passes-{len(schedule.split(','))}"
        yield Configuration(f"{group}@{m}", group, _first(m), target_schedule=schedule)
    if blocks > EVERY:
        script = (("t" + "d" * (EVERY - 1)) * blocks)[:blocks]
        yield Configuration(f"every@{EVERY}", "every", RouterConfig(policy="scripted", script=script))
    for rate in RATES:
        yield Configuration(f"random@{rate:g}", "random", RouterConfig(policy="random", rate=rate))
    yield Configuration(ANCHOR_ONLY, "anchor", RouterConfig(policy="anchor-only"))
    for tau in taus:
        yield Configuration(f"reward-min@{tau:g}", "reward-min", RouterConfig(tau=tau))
    for tau in taus:
        yield Configuration(f"reward-mean@{tau:g}", "reward-mean", RouterConfig(tau=tau, aggregation="mean"))
    for tau in DIFFERENCES:
        yield Configuration(f"relative@{tau:g}", "relative", RouterConfig(policy="relative", tau=tau))
    for k in REPAIR_STEPS[: steps - 1]:
        yield Configuration(f"repair-{k}@{middle:g}", "repair", RouterConfig(tau=middle, handover=k))
    yield Configuration(DRAFT_ONLY, "ends", RouterConfig(policy="always-draft", forced_blocks=0))
    for rate in OPEN_RATES:
        router = RouterConfig(policy="random", rate=rate, forced_blocks=0)
        yield Configuration(f"random-open@{rate:g}", "random-open", router)
    # The lowest, the middle and the second highest: enough to see whether two curves differ.
    for tau in dict.fromkeys((taus[0], middle, taus[max(len(taus) - 2, 0)])):
        yield Configuration(f"own@{tau:g}", "own", RouterConfig(tau=tau), drafter_context="own")


def _first(m: int, handover: int = 0) -> RouterConfig:
    return RouterConfig(policy="first", forced_blocks=m, handover=handover)


def few_steps(timesteps: Sequence[float]) -> tuple[str, ...]:
    """Return shorter schedules for the target, as text: its first and last step, and its first alone."""
    if len(timesteps) < 3:
        return ()
    return f"{timesteps[0]:g},{timesteps[-1]:g}", f"{timesteps[0]:g}"


def pick(configurations: Sequence[Configuration], patterns: Sequence[str]) -> tuple[Configuration, ...]:
    """Return the configurations that match a pattern such as `reward-min@*`; all of them if there is no pattern.

    Raises `BadInput` for a pattern that matches none.
    """
    names = [configuration.name for configuration in configurations]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(f"no configuration is called {pattern!r}; choose among {', '.join(names)}")
    return tuple(c for c in configurations if not patterns or any(fnmatchcase(c.name, p) for p in patterns))
