"""What all videos of one prompt and seed have in common, and making one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from ..engine.history import History
from ..engine.noise import key
from ..engine.parts import Engine, NoiseSource
from ..engine.router import RouterConfig
from ..engine.speculate import Emitted, speculate
from ..engine.timeline import Timeline
from ..engine.types import Condition, Span
from .protocol import Configuration

AUTHORS = {
    "t": RouterConfig(policy="always-target"),
    "d": RouterConfig(policy="always-draft", force_first=False),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Take:
    """Blocks, noise and prompt: the very same objects for every configuration, so that runs can share."""

    spans: tuple[Span, ...]
    noise: NoiseSource
    condition: Condition
    seed: int

    def run(self, engine: Engine, configuration: Configuration, clock: Callable[[], float]) -> Iterator[Emitted]:
        """Yield the blocks of the video that a configuration makes."""
        if configuration.route:
            return self._follow(engine, configuration.route, clock)
        return speculate(
            engine,
            self._own_draws(configuration.router),
            self.spans,
            self.noise,
            self._condition_of,
            drafter_context=configuration.drafter_context,
            clock=clock,
        )

    def _follow(self, engine: Engine, route: str, clock: Callable[[], float]) -> Iterator[Emitted]:
        """One run after another, each of neighbouring blocks with one author: so nothing is drafted in vain."""
        timeline = Timeline(History(horizon=engine.horizon))
        for author, spans in groupby(self.spans, key=lambda span: route[span.index]):
            for emitted in speculate(
                engine,
                AUTHORS[author],
                tuple(spans),
                self.noise,
                self._condition_of,
                start=timeline,
                clock=clock,
            ):
                timeline = emitted.timeline
                yield emitted

    def _own_draws(self, router: RouterConfig) -> RouterConfig:
        """Return the router with a seed of this prompt and seed, or `random` would route every video alike.

        A draft that is kept at one rate is kept at every higher one too.
        """
        words = int.from_bytes(self.condition.text.encode("utf-8", "backslashreplace"), "big")
        return replace(router, seed=key(router.seed, self.seed, words))

    def _condition_of(self, block: int) -> Condition:
        return self.condition
