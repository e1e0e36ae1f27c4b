"""One video, ready to run: command line, nodes, study and benchmark all get their blocks this way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafts import check_finite
from .history import History
from .noise import KeyedNoise
from .overlap import speculate_overlapped
from .parts import Engine
from .router import Decision, RouterConfig
from .size import check_given
from .spans import plan_spans, spans_of_clip
from .speculate import DrafterContext, Emitted, speculate
from .timeline import Timeline, replay
from .types import Block, Condition, Span


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """A block from an earlier run of the same request: its latents `b c t h w`, and the decision on it."""

    latents: Tensor
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Everything that determines a video.

    `spans`: the blocks of this request. `before`: the committed blocks that already exist: first those of a given
    clip, then the first ones of this request if a stopped run made them; `past` holds the decisions on the latter.
    `ahead`: the models' device, to start the next block while the newest is decoded and scored (see `overlap`);
    None to do one after the other. `clock`: seconds; on an accelerator, one that waits for the device.
    """

    engine: Engine
    router: RouterConfig
    spans: tuple[Span, ...]
    noise: KeyedNoise
    condition_of: Callable[[int], Condition]
    drafter_context: DrafterContext = "committed"
    before: tuple[Block, ...] = ()
    past: tuple[Decision, ...] = ()
    ahead: torch.device | None = None
    clock: Callable[[], float] = time.perf_counter

    @property
    def given_frames(self) -> int:
        """Latent frames of the clip that the request continues."""
        return self.spans[0].start

    @property
    def nothing(self) -> Timeline:
        """The timeline of a clip without blocks."""
        return Timeline(History(horizon=self.engine.horizon))

    def replay(self) -> Iterator[tuple[Timeline, Tensor]]:
        """Decode the existing blocks: after each, yield the timeline and the block's pixel frames `b f c h w`."""
        for timeline, frames in replay(self.before, self.engine.codec, self.engine.horizon):
            check_finite(frames, timeline.history.blocks[-1].span, "decoded frames")
            yield timeline, frames

    def blocks(self, start: Timeline | None = None) -> Iterator[Emitted]:
        """Make the remaining blocks, and yield each as soon as it is decided.

        `start`: the last timeline of `replay`; without it, the existing blocks are decoded here.
        """
        timeline = start or self.nothing
        for after, _ in () if start else self.replay():
            timeline = after
        parts = (self.engine, self.router, self.spans, self.noise, self.condition_of)
        context, past, clock = self.drafter_context, self.past, self.clock
        if self.ahead is None:
            return speculate(*parts, drafter_context=context, start=timeline, past=past, clock=clock)
        return speculate_overlapped(
            *parts, device=self.ahead, drafter_context=context, start=timeline, past=past, clock=clock
        )


def plan_run(
    engine: Engine,
    router: RouterConfig,
    condition_of: Callable[[int], Condition],
    *,
    blocks: int,
    seed: int,
    width: int,
    height: int,
    drafter_context: DrafterContext = "committed",
    given: Tensor | None = None,
    made: Sequence[Made] = (),
    ahead: torch.device | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Return the run that makes `blocks` blocks of `width` x `height` pixels.

    `given`: normalised latents `b c t h w` of a clip to continue, or of a start image. `made`: the first blocks of
    this same request, from a run that was stopped. Raises `BadInput` for a given clip of another size, or one with
    NaN or infinity.
    """
    codec, block_frames = engine.codec, engine.target.block_frames
    rows, columns = height // codec.spatial_stride, width // codec.spatial_stride
    if given is not None:
        check_given(given, codec.latent_channels, rows, columns)
    clip = spans_of_clip(given.shape[2], block_frames) if given is not None else ()
    spans = plan_spans(blocks, block_frames, clip[-1].stop if clip else 0)
    latents = [given[:, :, span.start : span.stop] for span in clip] if given is not None else []
    latents += [one.latents for one in made]
    before = zip((*clip, *spans), latents, strict=False)
    return Run(
        engine=engine,
        router=router,
        spans=spans,
        noise=KeyedNoise(seed=seed, channels=codec.latent_channels, height=rows, width=columns),
        condition_of=condition_of,
        drafter_context=drafter_context,
        before=tuple(Block(span, block, condition_of(span.index)) for span, block in before),
        past=tuple(one.decision for one in made),
        ahead=ahead,
        clock=clock,
    )
