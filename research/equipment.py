"""What every worker of a study needs: the loaded models and the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.devices.device import device_clock
from sdvg_core.engine.noise import key
from sdvg_core.engine.parts import BlockGenerator, Engine, Scorer
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run, plan_run
from sdvg_core.engine.types import Condition
from sdvg_core.errors import BadInput
from sdvg_core.pipeline.checking import check_models
from sdvg_core.pipeline.loading import load_models
from sdvg_core.pipeline.options import LoadOptions

from .memo import GIGABYTE
from .metrics import External, FrameJudge, Metric, Oracle, SeamChange
from .protocol import Configuration, few_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Everything a worker needs to set itself up, as values that can be sent between processes.

    `pocket`: whether the videos show the pocket world, so that its oracle can judge them. `memo_bytes`: of decoded
    frames and decoder states to cache; 0 caches nothing.
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
class Equipment:
    """The parts of a run, and the metrics for its videos.

    `engine`: with a scorer, as every video is scored at the end. `width`, `height`: of the videos, in pixels.
    `judge`: rates a frame; None outside the pocket world. `targets`: with other schedules, by these. `clock`:
    seconds; on an accelerator, one that waits for the device.
    """

    engine: Engine
    blocks: int
    width: int
    height: int
    metrics: tuple[Metric, ...] = ()
    judge: FrameJudge | None = None
    targets: Mapping[str, BlockGenerator] = field(default_factory=dict)
    memo_bytes: float = GIGABYTE
    clock: Callable[[], float] = time.perf_counter

    def run(self, condition: Condition, seed: int, router: RouterConfig | None = None) -> Run:
        """Return the run that all videos of one prompt and seed have in common: blocks, noise and prompt.

        All videos get the same objects for these, so that runs can share results computed from them.
        """
        return plan_run(
            self.engine,
            router or RouterConfig(),
            lambda _: condition,
            blocks=self.blocks,
            seed=seed,
            width=self.width,
            height=self.height,
            clock=self.clock,
        )


def configured(run: Run, configuration: Configuration, engine: Engine, clock: Callable[[], float]) -> Run:
    """Return the run of one configuration, with its own parts. A `random` router draws per prompt and seed.

    A draft that is kept at one rate is also kept at every higher rate.
    """
    router = configuration.router
    words = int.from_bytes(run.condition_of(0).text.encode("utf-8", "backslashreplace"), "big")
    return replace(
        run,
        engine=engine,
        router=replace(router, seed=key(router.seed, run.noise.seed, words)),
        drafter_context=configuration.drafter_context,
        clock=clock,
    )


def scorer_of(engine: Engine) -> Scorer:
    """Return the scorer of an engine. Raises `BadInput` if it has none."""
    if engine.scorer is None:
        raise BadInput("a study scores every video, but no reward model was loaded; give one with --reward")
    return engine.scorer


def open_equipment(options: WorkerOptions) -> Equipment:
    """Load the models of a study.

    On a CPU every worker computes with one thread, so that rows do not depend on the number of workers.
    """
    if options.load.device == "cpu":
        torch.set_num_threads(1)
    checked = check_models(options.files, options.load)
    loaded = load_models(options.files, options.load, checked)
    few = few_steps(checked.shapes[1].timesteps)
    oracle = Oracle()
    optional = (oracle if options.pocket else None, options.external)
    return Equipment(
        engine=loaded.build(),
        blocks=options.blocks,
        width=options.width,
        height=options.height,
        metrics=(SeamChange(), *(metric for metric in optional if metric)),
        judge=oracle if options.pocket else None,
        targets={schedule: loaded.build(target_schedule=schedule).target for schedule in few},
        memo_bytes=options.memo_bytes,
        clock=device_clock(loaded.device, loaded.side),
    )


def warm_up(equipment: Equipment, condition: Condition) -> None:
    """Run every part once or twice, so that no row pays the extra cost of a first call."""
    run = equipment.run(condition, 0, RouterConfig(tau=float("inf")))
    for _ in replace(run, spans=run.spans[:2]).blocks():
        pass
