"""Make videos and record what each one took, from outside the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from lab.research.observed import observed
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.records import Seconds
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.errors import BadInput
from sdvg_core.memory.sizes import PlanRequest
from sdvg_core.report.run_report import RunReport
from tests.support.routers import planned_route

from .variants import Case, Setup, Variant

# Enough for every shape of either model: no context, context, and context with a re-encoded first frame.
WARM_UP_PLANS = ("rara", "aa")
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one video took, in seconds, bytes and counts.

    `arrivals`: when each block arrived, since the call. `parts`: as the loop records them. `peak`: of memory.
    """

    arrivals: tuple[float, ...]
    parts: Seconds
    passes: Mapping[str, int]
    pixel_frames: int
    peak: int | None

    @property
    def video(self) -> float:
        return self.arrivals[-1]

    @property
    def block_seconds(self) -> tuple[float, ...]:
        """Seconds for each block since the one before, the first since the call."""
        return tuple(later - earlier for earlier, later in pairwise((0.0, *self.arrivals)))


class Gauge:
    """The most memory that torch's allocator handed out on a CUDA device at once, since it was last cleared."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def clear(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int | None:
        """Return the peak in bytes; None on a CPU, whose memory torch does not count."""
        return int(torch.cuda.max_memory_allocated(self._device)) if self._device.type == "cuda" else None


WarmUp = tuple[float, Mapping[str, int]]
"""What the warm-up took: seconds, including compilation, and the peak bytes of each part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Everything to time videos with. `clock`: of the device."""

    setups: Mapping[str, Setup]
    request: PlanRequest
    clock: Callable[[], Any]
    gauge: Gauge

    def measure(self, case: Case) -> Sample:
        """Make one video and return what it took. Raises `BadInput` if it did not take the intended route."""
        run = self.run(case)
        self.gauge.clear()
        arrivals = []
        records = []
        began = self.clock()
        for shown in run.play():
            if shown.record:
                arrivals.append(self.clock() - began)
                records.append(shown.record)
        if tuple(record.decision.accepted for record in records) != case.route.keeps:
            raise BadInput(f"a score in {case.route.plan} was not finite; use a wider dtype for VAE or scorer")
        report = RunReport(settings={}, versions={}, blocks=tuple(records), fps=1.0)
        return Sample(
            arrivals=tuple(map(float, arrivals)),
            parts=report.seconds,
            passes=report.passes,
            pixel_frames=report.pixel_frames,
            peak=self.gauge.peak(),
        )

    def warm_up(self, case: Case) -> WarmUp:
        """Make a few blocks of every kind that no sample counts, and gauge each part's memory."""
        peaks: dict[str, int] = {}
        began = self.clock()
        for plan in WARM_UP_PLANS:
            run = self.run(case, blocks=min(len(plan), max(self.request.blocks, 2)))
            route = planned_route(plan, forced_blocks=int(plan[0] == "r"))
            routed = replace(run.plan, route=route)
            for _ in replace(run, engine=metered(run.engine, self.gauge, peaks), plan=routed).blocks():
                pass
        return float(self.clock() - began), peaks

    def run(self, case: Case, blocks: int | None = None) -> Run:
        """Return the run of a case; all cases share noise and prompt. `blocks`: None for the requested number."""
        models = self.setups[case.variant.name].models
        return plan_run(
            case.engine(self.setups[case.variant.name], self.clock),
            case.route.rule,
            lambda _: models.condition,
            blocks=blocks or self.request.blocks,
            seed=SEED,
            width=self.request.width,
            height=self.request.height,
            clock=self.clock,
        )


def rounds(
    bench: Bench, cases: Sequence[Case], repeats: int, get_ready: Callable[[Case], None]
) -> Iterator[tuple[Case, Sample]]:
    """Yield a sample of every case, then of every case again, so that drift affects all of them alike.

    `get_ready`: called with a case of each variant, just before the variant's first video. So a run that is stopped
    while one variant compiles has measured those before it.
    """
    waiting: dict[Variant, Case] = {}
    for case in sorted(cases, key=lambda case: not case.route.routed):
        waiting.setdefault(case.variant, case)  # preferably one that uses both models
    for _ in range(repeats):
        for case in cases:
            if case.variant in waiting:
                get_ready(waiting.pop(case.variant))
            yield case, bench.measure(case)


def metered(engine: Engine, gauge: Gauge, peaks: dict[str, int]) -> Engine:
    """Return the engine with the gauge read around each part; its peak is written into `peaks`."""

    def read(part: str, arguments: tuple[Any, ...], work: Callable[..., Any]) -> Any:
        gauge.clear()
        result = work(*arguments)
        peak = gauge.peak()
        if peak is not None:
            peaks[part] = max(peak, peaks.get(part, 0))
        return result

    return observed(engine, read)
