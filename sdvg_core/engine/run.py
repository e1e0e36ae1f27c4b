"""One video, ready to run: command line, nodes, study and benchmark all get their blocks this way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from .fit import check_given, parts_there
from .noise import KeyedNoise
from .parts import Engine
from .records import BlockRecord
from .reuse import Recaller, Reuse
from .route import plan_route
from .router import Decision, RouterConfig
from .speculate import Emitted, speculate
from .timeline import Replayed, Timeline, begin_clip, replay
from .types import Block, Condition, DrafterContext, Span, check_finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video.

    `router`: with the user's directions. `spans`: the blocks of this request. `before`: the committed blocks that
    already exist: first those of a given clip, then the first ones of this request if an earlier run made them;
    `reused` holds the records of the latter. `clock`: seconds; on an accelerator, one that waits for the device.
    `notes`: what a reader of the report must know of the route. `recaller`: keeps what is made for later runs; None
    to keep nothing.
    """

    engine: Engine
    router: RouterConfig
    spans: tuple[Span, ...]
    noise: KeyedNoise
    condition_of: Callable[[int], Condition]
    drafter_context: DrafterContext = "committed"
    before: tuple[Block, ...] = ()
    reused: tuple[BlockRecord, ...] = ()
    clock: Callable[[], float] = time.perf_counter
    notes: tuple[str, ...] = ()
    recaller: Recaller | None = None

    @property
    def given_frames(self) -> int:
        """Latent frames of the clip that the request continues."""
        return self.spans[0].start

    @property
    def past(self) -> tuple[Decision, ...]:
        """The decisions on the blocks of this request that already exist."""
        return tuple(record.decision for record in self.reused)

    @property
    def reused_blocks(self) -> tuple[Block, ...]:
        """The blocks of this request that already exist."""
        return self.before[len(self.before) - len(self.reused) :]

    @property
    def nothing(self) -> Timeline:
        """The timeline of a clip without blocks."""
        return begin_clip(self.engine)

    def replay(self) -> Iterator[Replayed]:
        """Decode the existing blocks, and yield each."""
        for again in replay(self.before, self.engine.judging, self.nothing):
            check_finite(again.preview, again.timeline.history.blocks[-1].span, "decoded frames")
            yield again

    def blocks(self, start: Timeline | None = None) -> Iterator[Emitted]:
        """Make the remaining blocks, and yield each as soon as it is decided.

        `start`: the last timeline of `replay`; without it, the existing blocks are decoded here.
        """
        timeline = start or self.nothing
        for again in () if start else self.replay():
            timeline = again.timeline
        parts = (self.engine, self.router, self.spans, self.noise, self.condition_of)
        options = {"drafter_context": self.drafter_context, "past": self.past, "clock": self.clock}
        loop = speculate(*parts, start=timeline, **options)
        return loop if self.recaller is None else _remembered(loop, self.recaller)


def _remembered(loop: Iterator[Emitted], recaller: Recaller) -> Iterator[Emitted]:
    with closing(cast("Generator[Emitted, None, None]", loop)):
        for emitted in loop:
            recaller.remember(emitted)
            yield emitted


def plan_run(
    engine: Engine,
    router: RouterConfig,
    condition_of: Callable[[int], Condition],
    *,
    blocks: int,
    seed: int,
    width: int,
    height: int,
    directions: str = "",
    takes: str = "",
    drafter_context: DrafterContext = "committed",
    given: Tensor | None = None,
    reuse: Reuse | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Return the run that makes `blocks` blocks of `width` x `height` pixels.

    `directions`, `takes`: as users write them (see `directions`). `given`: normalised latents `b c t h w` of a clip
    to continue, or of a start image. `reuse`: what earlier runs made; the longest beginning that is provably the
    same is not made again, and what this run makes is put there.
    Raises `BadInput` for directions or takes that do not fit, for a part that is missing, for a given clip of
    another size, or one with NaN or infinity.
    """
    codec = engine.codec
    rows, columns = height // codec.spatial_stride, width // codec.spatial_stride
    if given is not None:
        check_given(given, codec.latent_channels, rows, columns)
    route = plan_route(
        router,
        blocks=blocks,
        block_frames=engine.target.block_frames,
        there=parts_there(engine),
        given_frames=0 if given is None else given.shape[2],
        directions=directions,
        takes=takes,
    )
    clip = tuple(
        Block(span, given[:, :, span.start : span.stop], condition_of(span.index))
        for span in route.clip
        if given is not None
    )
    noise = KeyedNoise(seed=seed, channels=codec.latent_channels, height=rows, width=columns)
    run = Run(
        engine=engine,
        router=route.router,
        spans=route.spans,
        noise=noise,
        condition_of=condition_of,
        drafter_context=drafter_context,
        before=clip,
        clock=clock,
        notes=route.notes,
    )
    return _with_reuse(run, reuse) if reuse else run


def _with_reuse(run: Run, reuse: Reuse) -> Run:
    recaller = Recaller(reuse, run.noise, run.router.handover)
    found = recaller.rehearse(run.engine, run.router, run.spans, run.before, run.condition_of, run.drafter_context)
    return replace(
        run,
        engine=recaller.engine(run.engine),
        before=(*run.before, *(block for block, _ in found)),
        reused=tuple(record for _, record in found),
        recaller=recaller,
    )
