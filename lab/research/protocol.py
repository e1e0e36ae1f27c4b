"""The configurations of a study, as data: who makes which block, and a name for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

from sdvg_core.errors import BadInput
from sdvg_core.settings.request import DrafterContext
from sdvg_core.settings.route import (
    CASCADE_MARGIN,
    Custom,
    First,
    Gate,
    Mean,
    Route,
    Stride,
    TargetOnly,
    WorstFrame,
    route_preset,
)
from tests.support.routers import RandomRouter

TARGET_ONLY = "target-only"
DRAFT_ONLY = "draft-only"
ANCHOR_ONLY = "anchor-only"

PAPER_TAUS = (-2.5, -2.0, -1.5, -1.0, -0.9, -0.8, -0.7)
"""The thresholds of the paper's Table 1, for ImageReward itself."""

POCKET_TAUS = (-1.25, -1.0, -0.7, -0.4)
"""For the embedded set."""

RATES = (0.3, 0.6, 0.8)
"""The chance that random routing keeps a draft. 0.8 after a forced block keeps 71 % of nine (the paper: 70.3 %)."""
STRIDES = (3, 4)
UNFORCED_RATE = 0.7
"""The same where the first block is drawn too (the paper: 70.0 %)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way of making the videos.

    `group`: configurations of a group differ in one number; a plot joins them by a line. A `RandomRouter` draws per
    prompt and seed. `draft_steps`: after how many steps drafts stop; None for all of the schedule's.
    """

    name: str
    group: str
    route: Route = Route()
    drafter_context: DrafterContext = "committed"
    draft_steps: int | None = None


FIRST_TWO = Configuration("handover-2@2", "handover-2", Route(First(2), handover=2))
"""The route that *balanced* was until 30 November 2026, and that most tables of the study have."""


def protocol(blocks: int, taus: Sequence[float], *, steps: int = 4) -> tuple[Configuration, ...]:
    """Return every configuration for videos of `blocks` blocks, ordered so that similar routes are together.

    `taus`: thresholds of the reward sweep. `steps`: of both models' denoising; half of them, or all but one, are
    handed over, and a few ways come once more with drafts of all but one.
    """
    taus = sorted(taus)
    middle = taus[len(taus) // 2]
    handovers = sorted({steps // 2, steps - 1} - {0})
    ways = [*_configurations(blocks, taus, handovers), *_hybrid(taus, steps - 1)]
    again = (ANCHOR_ONLY, f"handover-{steps - 1}@2", f"reward-min@{middle:g}", f"hybrid@{middle:g}")
    short = [way for way in ways if way.name in again and steps > 1]
    return (*ways, *(_with_short_drafts(way, steps - 1) for way in short))


def _with_short_drafts(way: Configuration, steps: int) -> Configuration:
    group = f"drafts-{steps}"
    return replace(way, name=f"{group}:{way.name}", group=group, draft_steps=steps)


def _hybrid(taus: Sequence[float], handover: int) -> Iterator[Configuration]:
    """Yield the preset at the lowest, middle and highest tau, with as many steps handed over as there may be."""
    most = route_preset("hybrid").handover
    for tau in dict.fromkeys((taus[0], taus[len(taus) // 2], taus[-1])):
        route = Route(Gate(tau, by=WorstFrame(CASCADE_MARGIN)), handover=min(most, handover))
        yield Configuration(f"hybrid@{tau:g}", "hybrid", route)


def _configurations(blocks: int, taus: list[float], handovers: list[int]) -> Iterator[Configuration]:
    middle = taus[len(taus) // 2]
    yield Configuration(TARGET_ONLY, "ends", Route(TargetOnly()))
    for m in range(2, blocks):
        yield Configuration(f"first@{m}", "first", _first(m))
    for steps, m in product(handovers, dict.fromkeys(min(m, blocks) for m in (2, 4, blocks))):
        yield Configuration(f"handover-{steps}@{m}", f"handover-{steps}", _first(m, steps))
    if fewer := min(handovers, default=0):  # the control for a handover: as few passes of the target, and no draft
        for m in dict.fromkeys(min(m, blocks) for m in (2, 4, blocks)):
            yield Configuration(f"passes-{fewer}@{m}", f"passes-{fewer}", Route(First(m), target_steps=fewer))
    for steps, n in product([0, *handovers], STRIDES):
        group = f"stride-{steps}" if steps else "stride"
        yield Configuration(f"{group}@{n}", group, Route(Stride(n), handover=steps))
    for rate in RATES:
        yield Configuration(f"random@{rate:g}", "random", Route(Custom(RandomRouter(rate))))
    unforced = Route(Custom(RandomRouter(UNFORCED_RATE), forced_blocks=0))
    yield Configuration(f"random-unforced@{UNFORCED_RATE:g}", "random-unforced", unforced)
    yield Configuration(ANCHOR_ONLY, ANCHOR_ONLY, _first(1))
    for tau in taus:
        yield Configuration(f"reward-min@{tau:g}", "reward-min", Route(Gate(tau)))
    yield Configuration(f"reward-mean@{middle:g}", "reward-mean", Route(Gate(middle, by=Mean())))
    yield Configuration(DRAFT_ONLY, "ends", _first(0))
    yield Configuration(f"own@{middle:g}", "own", Route(Gate(middle)), drafter_context="own")


def _first(m: int, handover: int = 0) -> Route:
    return Route(First(m), handover=handover)


def pick(configurations: Sequence[Configuration], patterns: Sequence[str]) -> tuple[Configuration, ...]:
    """Return the configurations that match a pattern such as `reward-min@*`; all of them if there is no pattern.

    Raises `BadInput` for a pattern that matches none.
    """
    names = [configuration.name for configuration in configurations]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(f"no configuration is called {pattern!r}; choose among {', '.join(names)}")
    return tuple(c for c in configurations if not patterns or any(fnmatchcase(c.name, p) for p in patterns))
