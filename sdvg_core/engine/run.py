"""One video, ready to run: command line, nodes, study and benchmark all get their blocks this way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from .drift import ColourHold, check_hold
from .inputs import BlockInputs, StartClip
from .plan import RunPlan, check_restyle
from .protocols import Engine
from .records import BlockRecord
from .reuse import Reuse, ReuseSession
from .router import Decision, RouterConfig
from .speculate import EmittedBlock, speculate
from .timeline import DecodedBlock, Timeline, begin_clip, replay
from .types import Block, DrafterContext, Span, check_clip, check_finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video.

    `router`: with the user's directions. `spans`: the blocks of this request. `before`: the committed blocks that
    already exist: first those of a start clip, then the first ones of this request if an earlier run made them;
    `reused` holds the records of the latter. `clock`: its readings subtract to seconds.
    `start_image_frames`: how many latent frames show a start image. `shown`: the start clip's pixels for the video,
    `1 f c h w` in [0, 1]; None to decode them. `session`: keeps what is made for later runs; None to keep nothing.
    """

    engine: Engine
    router: RouterConfig
    spans: tuple[Span, ...]
    inputs: BlockInputs
    drafter_context: DrafterContext = "committed"
    before: tuple[Block, ...] = ()
    reused: tuple[BlockRecord, ...] = ()
    clock: Callable[[], Any] = time.perf_counter
    start_image_frames: int = 0
    shown: Tensor | None = None
    session: ReuseSession | None = None

    @property
    def past(self) -> tuple[Decision, ...]:
        """The decisions on the blocks of this request that already exist."""
        return tuple(record.decision for record in self.reused)

    def play(self, stop: Callable[[], bool] = lambda: False) -> Generator[DecodedBlock]:
        """Yield the whole video: existing blocks, then new ones as soon as they are decided. `frames`: as shown.

        `stop`: asked after every new block whether to leave out the others.
        """
        timeline = begin_clip(self.engine)
        of_clip = (None,) * (len(self.before) - len(self.reused))
        for decoded, record in zip(self._replay(timeline), (*of_clip, *self.reused), strict=True):
            is_start_image = timeline.history.frames < self.start_image_frames
            timeline = decoded.timeline
            frames = decoded.frames[:, :1] if is_start_image else decoded.frames
            if self.shown is not None and record is None:
                frames = self._start_pixels(self.shown, decoded.block.span)
            if record and decoded.stored:
                record = replace(record, decodes=0)
            yield replace(decoded, frames=frames, record=record)
        with closing(self._make(timeline)) as loop:
            for emitted in loop:
                yield emitted
                if stop():
                    break

    def _start_pixels(self, pixels: Tensor, span: Span) -> Tensor:
        """Return the start clip's own pixels of a block; the last has fewer if the first frame is held."""
        stride = self.engine.codec.temporal_stride
        first, last = (max(1 + stride * (frame - 1), 0) for frame in (span.start, span.stop))
        return pixels[:, first:last]

    def blocks(self) -> Generator[EmittedBlock]:
        """Make the new blocks, and yield each as soon as it is decided."""
        timeline = begin_clip(self.engine)
        for decoded in self._replay(timeline):
            timeline = decoded.timeline
        return self._make(timeline)

    def _replay(self, start: Timeline) -> Iterator[DecodedBlock]:
        codec = self.engine.codec
        if self.session:
            to_go_on = len(self.reused) < len(self.spans)
            blocks = self.session.replay(self.before, codec, start, to_go_on=to_go_on)
        else:
            blocks = replay(self.before, codec, start)
        for decoded in blocks:
            check_finite(decoded.frames, decoded.block.span, "decoded frames")
            yield decoded

    def _make(self, start: Timeline) -> Generator[EmittedBlock]:
        with closing(self.loop(self.engine, start, self.clock)) as loop:
            for emitted in loop:
                if self.session:
                    self.session.remember(emitted)
                yield emitted

    def loop(self, engine: Engine, start: Timeline, clock: Callable[[], Any]) -> Generator[EmittedBlock]:
        """Make the blocks that follow `start` with the parts of `engine`."""
        return speculate(
            engine,
            self.router,
            self.spans,
            self.inputs,
            drafter_context=self.drafter_context,
            start=start,
            past=self.past,
            clock=clock,
        )


def make_run(
    engine: Engine,
    plan: RunPlan,
    inputs: BlockInputs,
    *,
    drafter_context: DrafterContext = "committed",
    start: StartClip | None = None,
    reuse: Reuse | None = None,
    colour_hold: float = 0.0,
    clock: Callable[[], Any] = time.perf_counter,
) -> Run:
    """Return the run that makes the blocks of `plan` from `inputs`, as large as their noise.

    `reuse`: what earlier runs made; the longest beginning that is provably the same is not made again, and what
    this run makes is put there. `colour_hold`: see `ColourHold`.
    Raises `BadInput` for a clip of another size, or one with NaN or infinity.
    """
    if colour_hold:
        engine, reuse = _holding(engine, reuse, colour_hold)
    noise = inputs.noise
    for clip in (start, inputs.restyle):
        if clip:
            size = (noise.channels, noise.height, noise.width)
            check_clip(clip.latents, size, "the clip", "use the size it was made in")
    for control in inputs.controls:
        control.check(plan.spans[-1].stop, noise.height, noise.width)
    check_restyle(engine.models[0], engine.models[-1], plan)
    before = [
        Block(span, start.latents[:, :, span.start : span.stop], inputs.condition_of(span.index))
        for span in plan.clip
        if start
    ]
    run = Run(
        engine=engine,
        router=plan.router,
        spans=plan.spans,
        inputs=inputs,
        drafter_context=drafter_context,
        before=tuple(before),
        clock=clock,
        start_image_frames=plan.lead.start_image_frames,
        shown=start.pixels if start else None,
    )
    return _with_reuse(run, reuse) if reuse else run


def _holding(engine: Engine, reuse: Reuse | None, hold: float) -> tuple[Engine, Reuse | None]:
    """Return the engine with models that hold their colours, and re-use under other identities."""
    check_hold(hold)
    drafter = engine.drafter and ColourHold(engine.drafter, hold)
    target = engine.target and ColourHold(engine.target, hold)
    if reuse:
        keys = reuse.identities
        held = f"colour held {hold}"
        keys = replace(keys, drafter=f"{keys.drafter} {held}", target=f"{keys.target} {held}")
        reuse = replace(reuse, identities=keys)
    return replace(engine, drafter=drafter, target=target), reuse


def _with_reuse(run: Run, reuse: Reuse) -> Run:
    session = ReuseSession(reuse, run.inputs.noise, run.router)
    reused = session.dry_run(run.engine, run.before, partial(run.loop, clock=lambda: 0.0))
    return replace(
        run,
        engine=session.engine(run.engine),
        before=(*run.before, *(block for block, _ in reused)),
        reused=tuple(record for _, record in reused),
        session=session,
    )
