"""The configurations of a study, as data: who makes which block, and a name for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sdvg_core.engine.router import POLICIES, RouterConfig
from sdvg_core.engine.types import DrafterContext
from sdvg_core.errors import BadInput

from .routers import RandomRouter

TARGET_ONLY, DRAFT_ONLY, ANCHOR_ONLY = "target-only", "draft-only", "anchor-only"

PAPER_TAUS = (-2.5, -2.0, -1.5, -1.0, -0.9, -0.8, -0.7)
"""The thresholds of the paper's Table 1, for ImageReward itself."""

POCKET_TAUS = (-1.25, -1.0, -0.7, -0.4)
"""For the embedded set."""

RATES = (0.3, 0.6, 0.8)
"""The chance that random routing keeps a draft. 0.8 after a forced block keeps 71 % of nine (the paper: 70.3 %)."""
UNFORCED_RATE = 0.7
"""The same where the first block is drawn too (the paper: 70.0 %)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way of making the videos.

    `group`: configurations of a group differ in one number; a plot joins them by a line. A `RandomRouter` draws per
    prompt and seed.
    """

    name: str
    group: str
    router: RouterConfig = field(default_factory=RouterConfig)
    drafter_context: DrafterContext = "committed"


def protocol(blocks: int, taus: Sequence[float], *, steps: int = 4) -> tuple[Configuration, ...]:
    """Return every configuration for videos of `blocks` blocks, ordered so that similar routes are together.

    `taus`: thresholds of the reward sweep. `steps`: of both models' denoising; half of them are handed over.
    """
    return tuple(_configurations(blocks, sorted(taus), steps // 2))


def _configurations(blocks: int, taus: list[float], half: int) -> Iterator[Configuration]:
    middle = taus[len(taus) // 2]
    yield Configuration(TARGET_ONLY, "ends", RouterConfig(policy="always-target"))
    for m in range(2, blocks):
        yield Configuration(f"first@{m}", "first", _first(m))
    for m in dict.fromkeys(min(m, blocks) for m in (2, 4, blocks) if half):
        yield Configuration(f"handover-{half}@{m}", f"handover-{half}", _first(m, half))
    for rate in RATES:
        yield Configuration(f"random@{rate:g}", "random", RouterConfig(part=RandomRouter(rate)))
    unforced = RouterConfig(part=RandomRouter(UNFORCED_RATE), forced_blocks=0)
    yield Configuration(f"random-unforced@{UNFORCED_RATE:g}", "random-unforced", unforced)
    yield Configuration(ANCHOR_ONLY, ANCHOR_ONLY, _first(1))
    swept = ("reward", "first", "always-target")
    for name in [name for name in POLICIES if name not in swept]:
        yield Configuration(name, name, RouterConfig(policy=name))
    for tau in taus:
        yield Configuration(f"reward-min@{tau:g}", "reward-min", RouterConfig(tau=tau))
    yield Configuration(f"reward-mean@{middle:g}", "reward-mean", RouterConfig(tau=middle, aggregation="mean"))
    yield Configuration(DRAFT_ONLY, "ends", _first(0))
    yield Configuration(f"own@{middle:g}", "own", RouterConfig(tau=middle), drafter_context="own")


def _first(m: int, handover: int = 0) -> RouterConfig:
    return RouterConfig(policy="first", forced_blocks=m, handover=handover)


def pick(configurations: Sequence[Configuration], patterns: Sequence[str]) -> tuple[Configuration, ...]:
    """Return the configurations that match a pattern such as `reward-min@*`; all of them if there is no pattern.

    Raises `BadInput` for a pattern that matches none.
    """
    names = [configuration.name for configuration in configurations]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(f"no configuration is called {pattern!r}; choose among {', '.join(names)}")
    return tuple(c for c in configurations if not patterns or any(fnmatchcase(c.name, p) for p in patterns))
