"""Make videos and record what each one took, from outside the loop, through the blocks it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sdvg_core.engine.delivery import InOrder
from sdvg_core.engine.parts import Engine
from sdvg_core.engine.records import Seconds
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.errors import BadInput
from sdvg_core.plan.request import PlanRequest
from sdvg_core.report.run_report import Passes, RunReport

from .gauges import Gauge, metered
from .variants import Case, Setup, Variant

# Enough for every shape of either model: no context, context, and context with a re-encoded first frame.
WARM_UP_SCRIPTS = ("rara", "aa")
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one video took, in seconds, bytes and counts.

    `arrivals`: when each block arrived, since the call; with a judge, as it shows them. `parts`: as the loop
    records them. `peak`: of memory. `delivered`: with a judge, when the last pixel of the video was there.
    """

    arrivals: tuple[float, ...]
    parts: Seconds
    passes: Passes
    pixel_frames: int
    peak: int | None
    delivered: float | None = None

    @property
    def video(self) -> float:
        """Seconds for the whole video."""
        return self.arrivals[-1] if self.delivered is None else self.delivered

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between consecutive blocks."""
        return self.block_seconds[1:]

    @property
    def block_seconds(self) -> tuple[float, ...]:
        """Seconds for each block since the one before, the first since the call."""
        return tuple(later - earlier for earlier, later in pairwise((0.0, *self.arrivals)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What the warm-up took: seconds, including compilation, and the peak bytes of each part."""

    seconds: float
    peaks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Everything to time videos with: the models as each variant runs them, the video's size, clocks and gauge.

    `clock` waits for every device, `model_clock` only for the transformers'.
    """

    setups: Mapping[str, Setup]
    request: PlanRequest
    clock: Callable[[], float]
    model_clock: Callable[[], float]
    gauge: Gauge

    def engine(self, case: Case) -> Engine:
        """Return the parts of one video."""
        return case.engine(self.setups[case.variant.name], self.model_clock)

    def measure(self, case: Case) -> Sample:
        """Make one video and return what it took. Raises `BadInput` if it did not take the intended route."""
        run = self.run(case, self.engine(case))
        self.gauge.clear()
        arrivals, records = [], []
        pixels = InOrder(lambda frames: None)
        began = self.clock()
        for emitted in run.blocks():
            pixels.add(emitted.delivered)
            arrivals.append(self.clock() - began)
            records.append(emitted.record)
        for _ in pixels.finish():
            pass
        delivered = self.clock() - began if case.variant.judge else None
        taken = tuple(record.decision.accepted for record in records)
        if taken != case.route.keeps:
            raise BadInput(
                f"the video should take the route {case.route.script}, but a score was no finite number and it "
                "took another; use a wider dtype for the VAE or the scorer"
            )
        report = RunReport(settings={}, versions={}, blocks=tuple(records), fps=1.0)
        return Sample(
            arrivals=tuple(arrivals),
            parts=report.seconds,
            passes=report.passes,
            pixel_frames=report.pixel_frames,
            peak=self.gauge.peak(),
            delivered=delivered,
        )

    def warm_up(self, case: Case) -> WarmUp:
        """Make a few blocks of every kind that no sample counts, and gauge each part's memory."""
        peaks: dict[str, int] = {}
        began = self.clock()
        for script in WARM_UP_SCRIPTS:
            engine = metered(self.engine(case), self.gauge, peaks)
            forced = script[0] == "r" and not case.variant.as_published
            run = replace(
                self.run(case, engine, blocks=min(len(script), max(self.request.blocks, 2))),
                router=RouterConfig(policy="scripted", script=script, forced_blocks=int(forced)),
                ahead=None,
            )
            for emitted in run.blocks():
                emitted.delivered.frames()
        return WarmUp(seconds=self.clock() - began, peaks=peaks)

    def run(self, case: Case, engine: Engine, blocks: int | None = None) -> Run:
        """Return the run of a case; all cases share noise and prompt. `blocks`: None for the requested number."""
        models = self.setups[case.variant.name].models
        return plan_run(
            engine,
            case.router,
            lambda _: models.condition,
            blocks=blocks or self.request.blocks,
            seed=SEED,
            width=self.request.width,
            height=self.request.height,
            ahead=models.device if case.variant.execution.overlap else None,
            side=models.side_device,
            clock=self.clock,
        )


def rounds(
    bench: Bench, cases: Sequence[Case], repeats: int, get_ready: Callable[[Case], None]
) -> Iterator[tuple[Case, Sample]]:
    """Yield a sample of every case, then of every case again, so that drift affects all of them alike.

    `get_ready`: called with a case of each variant, just before the variant's first video. So a run that is stopped
    while one variant compiles has measured those before it.
    """
    waiting = {case.variant: case for case in one_of_each(cases)}
    for _ in range(repeats):
        for case in cases:
            if case.variant in waiting:
                get_ready(waiting.pop(case.variant))
            yield case, bench.measure(case)


def one_of_each(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return one case of every variant, preferably one that uses both models."""
    ordered = sorted(cases, key=lambda case: not case.route.routed)
    found: dict[Variant, Case] = {}
    for case in ordered:
        found.setdefault(case.variant, case)
    return tuple(found.values())
