"""Routes of a study that draw."""

from __future__ import annotations

from dataclasses import replace

from sdvg_core.engine.inputs import generator_seed
from sdvg_core.settings.route import Custom, Route
from tests.support.routers import RandomRouter


def seeded(route: Route, prompt: str, seed: int) -> Route:
    """Return a route that draws for this prompt and seed if it draws; any other route as it is."""
    policy = route.policy
    if not (isinstance(policy, Custom) and isinstance(policy.router, RandomRouter)):
        return route
    words = int.from_bytes(prompt.encode("utf-8", "backslashreplace"), "big")
    router = replace(policy.router, seed=generator_seed(policy.router.seed, seed, words))
    return replace(route, policy=replace(policy, router=router))
