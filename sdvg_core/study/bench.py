"""What every worker of a study holds: the loaded models and the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..checkpoints.model_files import ModelFiles
from ..engine.noise import KeyedNoise
from ..engine.parts import Engine
from ..engine.router import RouterConfig
from ..engine.spans import plan_spans
from ..engine.speculate import speculate
from ..engine.types import Condition, Span
from ..pipeline.loading import LoadOptions, check_models, device_clock, load_engine
from .memo import GIGABYTE
from .metrics import External, FrameJudge, Metric, Oracle, SeamChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a worker needs to know to make itself ready, as values that travel between processes.

    `pocket`: whether the videos are of the pocket world, whose oracle can judge them. `memo_bytes`: of decoded
    frames and decoder states to remember; 0 computes everything anew.
    """

    files: ModelFiles
    load: LoadOptions
    blocks: int = 9
    width: int = 64
    height: int = 64
    pocket: bool = True
    external: External | None = None
    memo_bytes: int = GIGABYTE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """The parts of a run, and what its videos are measured by.

    `size`: (height, width) of the latents. `judge`: tells how good a frame is; None outside the pocket world.
    `clock`: seconds; on an accelerator, one that waits for the device.
    """

    engine: Engine
    blocks: int
    size: tuple[int, int]
    metrics: tuple[Metric, ...] = ()
    judge: FrameJudge | None = None
    memo_bytes: float = GIGABYTE
    clock: Callable[[], float] = time.perf_counter

    @property
    def spans(self) -> tuple[Span, ...]:
        """The blocks of every video."""
        return plan_spans(self.blocks, self.engine.target.block_frames)

    def noise(self, seed: int) -> KeyedNoise:
        """Return the noise of every video of that seed."""
        height, width = self.size
        return KeyedNoise(seed=seed, channels=self.engine.codec.latent_channels, height=height, width=width)


def open_bench(job: Job) -> Bench:
    """Load the models of a job.

    On a CPU every worker computes with one thread, so that rows do not hang on how many workers there are.
    """
    if job.load.device == "cpu":
        torch.set_num_threads(1)
    loaded = load_engine(job.files, job.load, check_models(job.files, job.load), lambda kind: None)
    stride = loaded.codec.spatial_stride
    oracle = Oracle()
    optional = (oracle if job.pocket else None, job.external)
    return Bench(
        engine=loaded.engine,
        blocks=job.blocks,
        size=(job.height // stride, job.width // stride),
        metrics=(SeamChange(), *(metric for metric in optional if metric)),
        judge=oracle if job.pocket else None,
        memo_bytes=job.memo_bytes,
        clock=device_clock(torch.device(job.load.device), job.load.beside),
    )


def warm_up(bench: Bench, condition: Condition) -> None:
    """Run every part once or twice, so that no row pays for what only a first call costs."""
    router = RouterConfig(tau=float("inf"))
    for _ in speculate(bench.engine, router, bench.spans[:2], bench.noise(0), lambda _: condition):
        pass
