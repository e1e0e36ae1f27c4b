"""Make videos and write down what each took: from outside the loop, through the blocks it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import BadInput
from ..noise import KeyedNoise
from ..plan.request import PlanRequest
from ..records import BlockRecord, Seconds
from ..report import Passes, RunReport
from ..router import RouterConfig
from ..spans import plan_spans
from ..speculate import Engine, speculate
from .execution import Case, Execution
from .gauges import Gauge, metered
from .models import Models

# Enough for every shape there is: no context, context, and context whose first frame is encoded anew.
WARM_UP_SCRIPT = (False, True, False, True)
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one video took. All in seconds, bytes and counts.

    `arrivals`: when each block was there, from the call on. `parts`: as the loop books them. `peak`: of memory.
    """

    arrivals: tuple[float, ...]
    parts: Seconds
    passes: Passes
    pixel_frames: int
    peak: int | None

    @property
    def video(self) -> float:
        """Seconds of the whole video."""
        return self.arrivals[-1]

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between neighbouring blocks."""
        return self.block_seconds[1:]

    @property
    def block_seconds(self) -> tuple[float, ...]:
        """Seconds from each block to the next, the first from the call on."""
        return tuple(later - earlier for earlier, later in pairwise((0.0, *self.arrivals)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Studio:
    """Where videos are made: the models, the size of the videos, the clock and the gauge."""

    models: Models
    request: PlanRequest
    clock: Callable[[], float]
    gauge: Gauge

    def film(self, case: Case) -> Sample:
        """Make one video and return what it took. Raises `BadInput` if it did not take the route it was to take."""
        engine = case.engine(self.models, self.request, self.clock)
        self.gauge.clear()
        arrivals, records = self._shoot(engine, case.router, self.request.blocks, dict(case.execution.loop))
        taken = tuple(record.decision.accepted for record in records)
        if taken != case.route.keeps:
            raise BadInput(
                f"expected the route {case.route.script}, but the blocks came out otherwise, for a score was no "
                "finite number; use a wider dtype for the VAE or the scorer"
            )
        report = RunReport(settings={}, versions={}, blocks=records, fps=1.0)
        return Sample(
            arrivals=arrivals,
            parts=report.seconds,
            passes=report.passes,
            pixel_frames=report.pixel_frames,
            peak=self.gauge.peak(),
        )

    def warm_up(self, case: Case) -> dict[str, int]:
        """Make a few blocks of every kind, untimed, and return the peak memory of each part of the work."""
        peaks: dict[str, int] = {}
        engine = metered(case.engine(self.models, self.request, self.clock), self.gauge, peaks)
        script = WARM_UP_SCRIPT[: max(self.request.blocks, 2)]
        router = RouterConfig(policy="scripted", script=script, force_first=not case.execution.as_published)
        self._shoot(engine, router, len(script), dict(case.execution.loop))
        return peaks

    def _shoot(
        self, engine: Engine, router: RouterConfig, blocks: int, loop: dict[str, Any]
    ) -> tuple[tuple[float, ...], tuple[BlockRecord, ...]]:
        codec = self.models.codec
        height, width = (side // codec.spatial_stride for side in (self.request.height, self.request.width))
        noise = KeyedNoise(seed=SEED, channels=codec.latent_channels, height=height, width=width)
        spans = plan_spans(blocks, engine.target.block_frames)
        arrivals, records = [], []
        began = self.clock()
        for emitted in speculate(
            engine, router, spans, noise, lambda _: self.models.condition, clock=self.clock, **loop
        ):
            arrivals.append(self.clock() - began)
            records.append(emitted.record)
        return tuple(arrivals), tuple(records)


def rounds(studio: Studio, cases: Sequence[Case], repeats: int) -> Iterator[tuple[Case, Sample]]:
    """Yield a sample of every case, then of every case again: what drifts meanwhile meets all of them alike."""
    for _ in range(repeats):
        for case in cases:
            yield case, studio.film(case)


def one_of_each(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return one case of every execution; those that both models take part in come first."""
    ordered = sorted(cases, key=lambda case: not case.route.routed)
    found: dict[Execution, Case] = {}
    for case in ordered:
        found.setdefault(case.execution, case)
    return tuple(found.values())
