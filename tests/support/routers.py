"""Routers that are no policy of the product, through the protocol that is open to everyone (`sdvg_core.Router`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sdvg_core.engine.inputs import generator_seed
from sdvg_core.errors import BadInput
from sdvg_core.settings.route import Custom, Route

RANDOM_SALT = 0x5D7


@dataclass(frozen=True, slots=True)
class RandomRouter:
    """Keep a draft with a chance of `rate`, without scoring it.

    What a gate must beat. The draw depends on seed and block alone, so what one rate keeps every higher one keeps.
    """

    rate: float
    seed: int = 0
    needs_scorer: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """Return what the decisions depend on."""
        return f"{self.rate} {self.seed}"

    def keep(self, index: int, score: float | None) -> bool:
        """Draw for block `index` of the route."""
        return generator_seed(RANDOM_SALT, self.seed, index) / 2**63 < self.rate


@dataclass(frozen=True, slots=True)
class PlannedRouter:
    """Decide by a plan, a letter for every block of the route.

    `a` keeps the draft and `r` rejects it, after it was scored; in a plan without scores, these are `d` and `t`.
    Unlike directions, rejections count for a bail-out, and a block of the target's may be handed over.
    """

    plan: str

    def __post_init__(self) -> None:
        if not (set(self.plan) <= set("ar") or set(self.plan) <= set("dt")):
            raise BadInput(f"the plan {self.plan!r:.60} is neither of a and r nor of d and t; write one of them")

    @property
    def needs_scorer(self) -> bool:
        """Whether drafts are scored."""
        return not set(self.plan) & set("dt")

    @property
    def key(self) -> str:
        """Return what the decisions depend on."""
        return self.plan

    def keep(self, index: int, score: float | None) -> bool:
        """Return the plan's decision on block `index` of the route."""
        return self.plan[index] in "ad"


def planned_route(plan: str, *, handover: int = 0, **settings: Any) -> Route:
    """Return a route that follows a plan. `settings`: forced blocks and bail-out."""
    return Route(Custom(PlannedRouter(plan), **settings), handover=handover)
