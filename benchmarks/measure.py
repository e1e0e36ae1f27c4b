"""Make videos and record what each one took, from outside the loop; or keep them whole, to compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from research.markdown import markdown
from research.observed import observed, plan_run
from research.routers import planned_route
from sdvg_core.engine.protocols import Engine
from sdvg_core.engine.records import Seconds
from sdvg_core.engine.run import Run
from sdvg_core.engine.speculate import EmittedBlock
from sdvg_core.errors import BadInput
from sdvg_core.memory.request import PlanRequest
from sdvg_core.report.run_report import RunReport

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
    """The most memory that torch's allocator handed out on CUDA devices at once, since it was last cleared."""

    def __init__(self, *devices: torch.device) -> None:
        self._devices = [device for device in dict.fromkeys(devices) if device.type == "cuda"]

    def clear(self) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> int | None:
        """Return the sum over devices of the peaks in bytes; None on a CPU, whose memory torch does not count."""
        peaks = [int(torch.cuda.max_memory_allocated(device)) for device in self._devices]
        return sum(peaks) if peaks else None


WarmUp = tuple[float, Mapping[str, int]]
"""What the warm-up took: seconds, including compilation, and the peak bytes of each part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Everything to time videos with. `clock`: of every device; `model_clock`: of the transformers' alone."""

    setups: Mapping[str, Setup]
    request: PlanRequest
    clock: Callable[[], Any]
    model_clock: Callable[[], Any]
    gauge: Gauge

    def measure(self, case: Case) -> Sample:
        """Make one video and return what it took. Raises `BadInput` if it did not take the intended route."""
        run = self.run(case)
        self.gauge.clear()
        arrivals, records = [], []
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
            forced = plan[0] == "r" and not case.variant.as_published
            router = planned_route(plan, forced_blocks=int(forced))
            routed = replace(run.plan, router=router)
            for _ in replace(run, engine=metered(run.engine, self.gauge, peaks), plan=routed).blocks():
                pass
        return float(self.clock() - began), peaks

    def run(self, case: Case, blocks: int | None = None) -> Run:
        """Return the run of a case; all cases share noise and prompt. `blocks`: None for the requested number."""
        models = self.setups[case.variant.name].models
        return plan_run(
            case.engine(self.setups[case.variant.name], self.model_clock),
            case.router,
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
        result, peak = work(*arguments), gauge.peak()
        if peak is not None:
            peaks[part] = max(peak, peaks.get(part, 0))
        return result

    return observed(engine, read)


# --- how a fast execution's video differs from the plain one's

Video = Mapping[str, Any]
"""The `latents` of a complete video, on the CPU; of its blocks the decisions (`accepted`) and frame `scores`."""


def video_of(bench: Bench, case: Case) -> Video:
    """Make the video of a case."""
    return collect(bench.run(case).blocks())


def collect(emitted: Iterable[EmittedBlock]) -> Video:
    """Join a video's blocks."""
    pairs = [(one.block.latents.cpu(), one.record.decision) for one in emitted]
    return {
        "latents": torch.cat([latents for latents, _ in pairs], dim=2),
        "accepted": [decision.accepted for _, decision in pairs],
        "scores": [decision.frame_scores for _, decision in pairs],
    }


def compare(reference: Video, other: Video, block_frames: int = 3) -> dict[str, Any]:
    """Return how far a video is off up to the first block decided otherwise; from there on it is another video."""
    pairs = list(zip(reference["accepted"], other["accepted"], strict=True))
    alike = next((number for number, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ours, theirs = (video["latents"][:, :, : alike * block_frames].double() for video in (reference, other))
    judged = zip(reference["scores"][: alike + 1], other["scores"][: alike + 1], strict=True)
    scores = [
        abs(a - b) for one, two in judged for a, b in zip(one or (), two or (), strict=True) if None not in (a, b)
    ]
    return {
        "blocks_alike": alike,
        "latents": float((ours - theirs).abs().max()) if alike else None,
        "latents_relative": float((ours - theirs).norm() / ours.norm()) if alike else None,
        "scores": max(scores, default=0.0),
    }


def compared_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return as a table how videos differ."""
    columns = ("blocks_alike", "latents", "latents_relative", "scores", "failed")
    rows = [[name, *(f"{one.get(column, '-')}" for column in columns)] for name, one in found.items()]
    return markdown(("video", *columns), rows)
