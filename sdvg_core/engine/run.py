"""One video, ready to run: command line, nodes, study and benchmark all get their blocks this way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from .control import ControlClip
from .drift import ColourHold, check_hold
from .noise import KeyedNoise
from .plan import RunPlan, check_given, check_restyle
from .protocols import Absent, BlockGenerator, Engine
from .records import BlockRecord
from .restyle import InputClip
from .reuse import Reuse, ReuseSession
from .router import Decision, RouterConfig
from .speculate import EmittedBlock, speculate
from .timeline import ReplayedBlock, Timeline, begin_clip, replay
from .types import Block, Condition, DrafterContext, Span, check_finite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video.

    `router`: with the user's directions. `spans`: the blocks of this request. `before`: the committed blocks that
    already exist: first those of a given clip, then the first ones of this request if an earlier run made them;
    `reused` holds the records of the latter. `clock`: seconds; on an accelerator, one that waits for the device.
    `start_image_frames`: how many latent frames show a start image. `shown`: the given clip's pixels for the video,
    `1 f c h w` in [0, 1]; None to decode them. `session`: keeps what is made for later runs; None to keep nothing.
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
    start_image_frames: int = 0
    shown: Tensor | None = None
    session: ReuseSession | None = None

    @property
    def past(self) -> tuple[Decision, ...]:
        """The decisions on the blocks of this request that already exist."""
        return tuple(record.decision for record in self.reused)

    def play(self, stop: Callable[[], bool] = lambda: False) -> Generator[RunEvent]:
        """Yield the whole video: existing blocks, then new ones as soon as they are decided.

        `stop`: asked after every new block whether to leave out the others.
        """
        timeline = begin_clip(self.engine)
        of_clip = (None,) * (len(self.before) - len(self.reused))
        for again, record in zip(self._replay(timeline), (*of_clip, *self.reused), strict=True):
            is_start_image = timeline.history.frames < self.start_image_frames
            timeline = again.timeline
            frames = again.frames[:, :1] if is_start_image else again.frames
            if self.shown is not None and record is None:
                frames = self._as_given(timeline.history.blocks[-1].span)
            record = record if record is None or again.decoded else replace(record, decodes=0)
            yield RunEvent(timeline, frames, record)
        with closing(self._make(timeline)) as loop:
            for emitted in loop:
                yield RunEvent(emitted.timeline, emitted.frames, emitted.record)
                if stop():
                    break

    def _as_given(self, span: Span) -> Tensor:
        """Return the given clip's own pixels of a block; the last has fewer if the first frame is held."""
        assert self.shown is not None
        stride = self.engine.codec.temporal_stride
        first, last = (max(1 + stride * (at - 1), 0) for at in (span.start, span.stop))
        return self.shown[:, first:last]

    def blocks(self) -> Generator[EmittedBlock]:
        """Make the new blocks, and yield each as soon as it is decided."""
        timeline = begin_clip(self.engine)
        for again in self._replay(timeline):
            timeline = again.timeline
        return self._make(timeline)

    def _replay(self, nothing: Timeline) -> Iterator[ReplayedBlock]:
        parts, to_go_on = (self.before, self.engine.codec, nothing), len(self.reused) < len(self.spans)
        for again in self.session.replay(*parts, to_go_on=to_go_on) if self.session else replay(*parts):
            check_finite(again.frames, again.timeline.history.blocks[-1].span, "decoded frames")
            yield again

    def _make(self, start: Timeline) -> Generator[EmittedBlock]:
        with closing(self.loop(self.engine, start, self.clock)) as loop:
            for emitted in loop:
                if self.session:
                    self.session.remember(emitted)
                yield emitted

    def loop(self, engine: Engine, start: Timeline, clock: Callable[[], float]) -> Generator[EmittedBlock]:
        """Make the blocks that follow `start` with the parts of `engine`."""
        return speculate(
            engine,
            self.router,
            self.spans,
            self.noise,
            self.condition_of,
            drafter_context=self.drafter_context,
            start=start,
            past=self.past,
            clock=clock,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RunEvent:
    """A block of a video, made now or earlier.

    `timeline`: ends with the block. `frames`: its pixel frames in the video, `b f c h w`. `record`: None for a
    block of the given clip.
    """

    timeline: Timeline
    frames: Tensor
    record: BlockRecord | None


def make_run(
    engine: Engine,
    plan: RunPlan,
    condition_of: Callable[[int], Condition],
    *,
    seed: int,
    width: int,
    height: int,
    drafter_context: DrafterContext = "committed",
    given: Tensor | None = None,
    source: Tensor | None = None,
    controls: Sequence[ControlClip] = (),
    shown: Tensor | None = None,
    reuse: Reuse | None = None,
    colour_hold: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Return the run that makes the blocks of `plan`, of `width` x `height` pixels.

    `given`: normalised latents `b c t h w` of a clip to continue, or of a start image; `shown`: that clip's own
    pixels, if it has any. `source`: the latents that the blocks restyle, by the plan's strengths; `controls`:
    the clips that they obey. `reuse`: what earlier runs made; the longest beginning that is provably the same is
    not made again, and what this run makes is put there. `colour_hold`: see `ColourHold`.
    Raises `BadInput` for a given clip of another size, or one with NaN or infinity.
    """
    if colour_hold:
        engine, reuse = _holding(engine, reuse, colour_hold)
    codec = engine.codec
    rows, columns = height // codec.spatial_stride, width // codec.spatial_stride
    for clip in (given, source):
        if clip is not None:
            check_given(clip, codec.latent_channels, rows, columns)
    for one in controls:
        one.check(plan.spans[-1].stop, rows, columns)
    check_restyle(engine.drafter, engine.target, plan)
    run = Run(
        engine=engine,
        router=plan.router,
        spans=plan.spans,
        noise=KeyedNoise(
            seed=seed,
            channels=codec.latent_channels,
            height=rows,
            width=columns,
            source=None if source is None else InputClip(source, plan.spans[0].start, plan.strengths),
            controls=tuple(controls),
        ),
        condition_of=condition_of,
        drafter_context=drafter_context,
        before=tuple(
            Block(span, given[:, :, span.start : span.stop], condition_of(span.index))
            for span in plan.clip
            if given is not None
        ),
        clock=clock,
        start_image_frames=plan.lead.start_image_frames,
        shown=shown,
    )
    return _with_reuse(run, reuse) if reuse else run


def _holding(engine: Engine, reuse: Reuse | None, hold: float) -> tuple[Engine, Reuse | None]:
    """Return the engine with models that hold their colours, and re-use under other identities."""
    check_hold(hold)

    def holding(model: BlockGenerator) -> BlockGenerator:
        return model if isinstance(model, Absent) else ColourHold(model, hold)

    if reuse:
        names = (f"{of} colour held {hold}" for of in (reuse.identities.drafter, reuse.identities.target))
        reuse = replace(reuse, identities=replace(reuse.identities, drafter=next(names), target=next(names)))
    return replace(engine, drafter=holding(engine.drafter), target=holding(engine.target)), reuse


def _with_reuse(run: Run, reuse: Reuse) -> Run:
    session = ReuseSession(reuse, run.noise, run.router.handover)
    found = session.dry_run(run.engine, run.before, partial(run.loop, clock=lambda: 0.0))
    return replace(
        run,
        engine=session.engine(run.engine),
        before=(*run.before, *(block for block, _ in found)),
        reused=tuple(record for _, record in found),
        session=session,
    )
