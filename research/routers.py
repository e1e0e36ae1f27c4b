"""Routers that are no policy of the product, through the protocol that is open to everyone (`sdvg_core.Router`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sdvg_core.engine.noise import key
from sdvg_core.engine.router import RouterConfig

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
        return key(RANDOM_SALT, self.seed, index) / 2**63 < self.rate


@dataclass(frozen=True, slots=True)
class PlannedRouter:
    """Decide by a plan: for every block of the route "a" to keep the draft, "r" to leave the block to the target.

    `needs_scorer`: whether drafts are scored first, which costs what a gate costs but changes no decision.
    """

    plan: str
    needs_scorer: bool = True

    @property
    def key(self) -> str:
        """Return what the decisions depend on."""
        return self.plan

    def keep(self, index: int, score: float | None) -> bool:
        """Return the plan's decision on block `index` of the route."""
        return self.plan[index] == "a"


def planned_route(plan: str, *, scored: bool = True, **settings: int) -> RouterConfig:
    """Return a router that follows a plan (see `PlannedRouter`), with the other settings of a route."""
    return RouterConfig(part=PlannedRouter(plan, scored), **settings)


def seeded(router: RouterConfig, prompt: str, seed: int) -> RouterConfig:
    """Return a router that draws for this prompt and seed if it draws; any other router as it is."""
    if not isinstance(router.part, RandomRouter):
        return router
    words = int.from_bytes(prompt.encode("utf-8", "backslashreplace"), "big")
    return replace(router, part=replace(router.part, seed=key(router.part.seed, seed, words)))
