"""Make videos and write down what each took: from outside the loop, through the blocks it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from ..engine.noise import KeyedNoise
from ..engine.overlap import speculate_overlapped
from ..engine.parts import Engine
from ..engine.records import Seconds
from ..engine.router import RouterConfig
from ..engine.spans import plan_spans
from ..engine.speculate import Emitted, speculate
from ..errors import BadInput
from ..plan.request import PlanRequest
from ..report.run_report import Passes, RunReport
from .execution import Case, Execution, Setup
from .gauges import Gauge, metered

# Enough for every shape of either model: no context, context, and context whose first frame is encoded anew.
WARM_UP_SCRIPTS = ((False, True, False, True), (True, True))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What making everything ready took: seconds, compiling among them, and the peak bytes of each part."""

    seconds: float
    peaks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Studio:
    """Where videos are made: the models as each execution runs them, the videos' size, the clocks and the gauge.

    `clock` waits for every device, `model_clock` for that of the transformers.
    """

    setups: Mapping[Execution, Setup]
    request: PlanRequest
    clock: Callable[[], float]
    model_clock: Callable[[], float]
    gauge: Gauge

    def film(self, case: Case) -> Sample:
        """Make one video and return what it took. Raises `BadInput` if it did not take the route it was to take."""
        engine = case.engine(self.setups[case.execution], self.model_clock)
        self.gauge.clear()
        arrivals, records = [], []
        began = self.clock()
        for emitted in self.shoot(case, engine):
            arrivals.append(self.clock() - began)
            records.append(emitted.record)
        taken = tuple(record.decision.accepted for record in records)
        if taken != case.route.keeps:
            raise BadInput(
                f"expected the route {case.route.script}, but the blocks came out otherwise, for a score was no "
                "finite number; use a wider dtype for the VAE or the scorer"
            )
        report = RunReport(settings={}, versions={}, blocks=tuple(records), fps=1.0)
        return Sample(
            arrivals=tuple(arrivals),
            parts=report.seconds,
            passes=report.passes,
            pixel_frames=report.pixel_frames,
            peak=self.gauge.peak(),
        )

    def warm_up(self, case: Case) -> WarmUp:
        """Make a few blocks of every kind, which no sample counts; part by part, so that each shows its memory."""
        peaks: dict[str, int] = {}
        began = self.clock()
        for script in WARM_UP_SCRIPTS:
            engine = metered(case.engine(self.setups[case.execution], self.model_clock), self.gauge, peaks)
            forced = not (script[0] or case.execution.as_published)
            router = RouterConfig(policy="scripted", script=script, force_first=forced)
            blocks = min(len(script), max(self.request.blocks, 2))
            for _ in self._run(speculate, case, engine, router, blocks):
                pass
        return WarmUp(seconds=self.clock() - began, peaks=peaks)

    def shoot(self, case: Case, engine: Engine) -> Iterator[Emitted]:
        """Yield the blocks of a video as they are made. The same noise and prompt for every case."""
        loop = speculate
        if case.execution.overlap:
            loop = partial(speculate_overlapped, device=self.setups[case.execution].models.device)
        return self._run(loop, case, engine, case.router, self.request.blocks)

    def _run(
        self,
        loop: Callable[..., Iterator[Emitted]],
        case: Case,
        engine: Engine,
        router: RouterConfig,
        blocks: int,
    ) -> Iterator[Emitted]:
        codec = engine.codec
        height, width = (side // codec.spatial_stride for side in (self.request.height, self.request.width))
        noise = KeyedNoise(seed=SEED, channels=codec.latent_channels, height=height, width=width)
        spans = plan_spans(blocks, engine.target.block_frames)
        condition = self.setups[case.execution].models.condition
        return loop(engine, router, spans, noise, lambda _: condition, clock=self.clock)


def rounds(
    studio: Studio, cases: Sequence[Case], repeats: int, get_ready: Callable[[Case], None]
) -> Iterator[tuple[Case, Sample]]:
    """Yield a sample of every case, then of every case again: what drifts meanwhile meets all of them alike.

    `get_ready`: called with a case of each execution, before the first video in it. So a run that is stopped while
    one compiles has measured those before it.
    """
    waiting = {case.execution: case for case in one_of_each(cases)}
    for _ in range(repeats):
        for case in cases:
            if case.execution in waiting:
                get_ready(waiting.pop(case.execution))
            yield case, studio.film(case)


def one_of_each(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return one case of every execution; those that both models take part in come first."""
    ordered = sorted(cases, key=lambda case: not case.route.routed)
    found: dict[Execution, Case] = {}
    for case in ordered:
        found.setdefault(case.execution, case)
    return tuple(found.values())
