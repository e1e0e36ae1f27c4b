"""Overlap: start generating the next block while the newest is decoded and scored.

The model that is due next starts as soon as the newest block's latents exist, on the guess that they will be
committed. If its context needs a picture of that block, it waits for that one frame only. Generation is a pure
function, so a wrong guess is simply a value that is not taken, and the video is bit for bit the one the loop makes
without overlap. The loop knows nothing of it: it is given models that may already have started. A block that the
target generated is always committed. So after a rejection the guess is always right, and with target-only nothing
is a guess. With a judge, committed blocks are also decoded for the video in a thread of their own (`delivery`).

The cost: the drafter's and the decoder's memory are needed at the same time. On one device the two also share its
compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .delivery import last_frames
from .fit import check_overlap
from .history import History
from .lane import Lane, Promise, Unwanted
from .parts import BlockGenerator, Engine, NoiseSource, VideoCodec
from .router import RouterConfig, foresee
from .speculate import Emitted, speculate
from .timeline import Timeline, begin_clip
from .types import Block, Condition, DrafterContext, Generated, Span, Work
from .wrapping import WrappedCodec, WrappedGenerator


def speculate_overlapped(
    engine: Engine,
    router: RouterConfig,
    spans: tuple[Span, ...],
    noise: NoiseSource,
    condition_of: Callable[[int], Condition],
    *,
    device: torch.device,
    side: torch.device | None = None,
    drafter_context: DrafterContext = "committed",
    start: Timeline | None = None,
    **options: Any,
) -> Iterator[Emitted]:
    """Yield what `speculate` yields, working ahead. Takes the same further options.

    `device`: where drafter and target run; `side`: where blocks are decoded, None for the same. In the records, a
    block that was started ahead only counts the seconds the loop waited for it, and the passes of a draft on a
    wrong guess are added to those of the next draft.
    Raises `BadInput` for a drafter that needs the pixels of its own drafts: nobody decodes those in the meantime.
    """
    own = drafter_context == "own"
    check_overlap(drafter_context, needs_pixels=engine.drafter.anchor_horizon > 0)
    lane = Lane(device, "sdvg-ahead")
    ahead = _Ahead(lane, condition_of, judged=engine.judge is not None)
    drafter, target = _Maker(engine.drafter, ahead), _Maker(engine.target, ahead)
    for span in spans:
        certain, handover = foresee(router, span.index, ()), router.handover_at(span.index)
        if certain is None or certain.accepted:
            ahead.expect(span, drafter)
        elif handover:
            ahead.expect(span, drafter, handover)
        elif not own:
            ahead.expect(span, target)
    parts = replace(
        engine,
        drafter=drafter,
        # With a context of its own, the drafter continues from its own drafts, whatever the target makes.
        target=engine.target if own else target,
        codec=engine.codec if engine.judge else _Codec(engine.codec, ahead),
        judge=_Codec(engine.judge, ahead) if engine.judge else None,
    )
    timeline = start or begin_clip(engine)
    # A model that waits for a picture in its lane must not be left waiting, so delivery ends last.
    with timeline.delivery.in_background(side or device) if timeline.delivery else nullcontext():
        try:
            yield from speculate(
                parts,
                router,
                spans,
                noise,
                condition_of,
                drafter_context=drafter_context,
                start=timeline,
                **options,
            )
        finally:
            ahead.stop()
            lane.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The arguments of one `generate`."""

    history: History
    span: Span
    noise: NoiseSource
    condition: Condition
    given: Sequence[Tensor] = ()
    stop: int | None = None

    def same_as(self, other: _Call) -> bool:
        ours, theirs = self.history.blocks, other.history.blocks
        return (
            self.span == other.span
            and self.noise is other.noise
            and self.condition is other.condition
            and self.stop == other.stop
            and not (self.given or other.given)
            and len(ours) == len(theirs)
            and all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))
        )

    def then(
        self,
        latents: Tensor,
        shown: tuple[Promise, ...],
        span: Span,
        condition: Condition,
        stop: int | None,
    ) -> _Call:
        """Return the call for the block at `span`, should `latents`, the result of this call, be committed.

        `shown`: the last pixel frame of each of their latent frames, if the model may ask for those. `stop`: the
        step to stop before.
        """
        block = Block(self.span, latents, self.condition)
        history = self.history.commit(block, tuple(promise.take for promise in shown))
        return _Call(history, span, self.noise, condition, stop=stop)


class _StoppableNoise:
    """Noise that stops a block at its next denoising step, once nobody wants the block."""

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise
        self.unwanted = threading.Event()
        self.draws = 0

    def draw(self, span: Span, slot: int) -> Tensor:
        if self.unwanted.is_set():
            raise Unwanted
        self.draws += 1
        return self._noise.draw(span, slot)


class _Maker(WrappedGenerator):
    """A model that may already have started on the block it is asked for.

    `idle`: it started a block and was not asked for one there, as happens after a bail-out. `thrown_away`: the work
    on blocks that were not taken, since the last one that was.
    """

    def __init__(self, inner: BlockGenerator, ahead: _Ahead) -> None:
        super().__init__(inner)
        self._ahead = ahead
        self.idle = False
        self.thrown_away = Work()

    def generate(self, *call: Any, **more: Any) -> Generated:
        return self._ahead.make(self, _Call(*call, **more))


class _Codec(WrappedCodec):
    """A codec that hands on each picture the next block waits for, as soon as it is decoded."""

    def __init__(self, inner: VideoCodec, ahead: _Ahead) -> None:
        super().__init__(inner)
        self._ahead = ahead

    def decode(self, latents: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        promised = self._ahead.go_on_from(latents)
        if not promised:
            return self.inner.decode(latents, state)
        pieces = []
        for promise, latent_frame in zip(promised, latents.split(1, dim=2), strict=True):
            frames, state = self.inner.decode(latent_frame, state)
            promise.give(*last_frames(frames, 1, self.temporal_stride))
            pieces.append(frames.transpose(1, 2))
        # Joined as a codec joins them, so that readers of the frames get the same strides.
        return torch.cat(pieces, dim=2).transpose(1, 2), state


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A block under way: the model, its arguments and its future result."""

    maker: _Maker
    call: _Call
    noise: _StoppableNoise
    made: Future[Generated]
    shown: tuple[Promise, ...] = ()


class _Ahead:
    """Starts blocks before they are asked for: at most one at a time, and always on the same thread.

    `judged`: whether a judge decodes the blocks. What a context would show of a block then comes from another
    codec, once the block is committed.
    """

    def __init__(self, lane: Lane, condition_of: Callable[[int], Condition], *, judged: bool) -> None:
        self._lane, self._condition_of, self._judged = lane, condition_of, judged
        self._expected: dict[int, tuple[_Maker, Span, int | None]] = {}
        self._newest: tuple[_Call, Tensor] | None = None
        self._begun: _Begun | None = None

    def expect(self, span: Span, maker: _Maker, stop: int | None = None) -> None:
        """Note that `maker` will be asked first for the block at `span`, or for its steps before `stop`."""
        self._expected[span.start] = maker, span, stop

    def make(self, maker: _Maker, call: _Call) -> Generated:
        """Return the block that `maker` is asked for; it may have started already."""
        if self._begun and not (self._begun.maker is maker and self._begun.call.same_as(call)):
            self._call_off(call.span)
        maker.idle = False
        ahead = self._begun is not None
        begun, self._begun = self._begun or self._begin(maker, call), None
        made = begun.made.result()
        self._lane.hand_over(made.predictions)
        self._newest = call, made.latents
        # The loop did not spend the time of a block that was started ahead; it only waited for it.
        work = replace(made.work, context_seconds=0.0) if ahead else made.work
        work, maker.thrown_away = maker.thrown_away + work, Work()
        return replace(made, work=work)

    def go_on_from(self, latents: Tensor) -> tuple[Promise, ...]:
        """Start the block that follows `latents`, if those are the newest block's.

        Return what that block waits for: the last pixel frame of each latent frame, or nothing.
        """
        if self._newest is None or self._newest[1] is not latents or self._begun:
            return ()
        call = self._newest[0]
        maker, span, stop = self._expected.get(call.span.stop, (None, call.span, None))
        if maker is None or maker.idle or (self._judged and maker.anchor_horizon):
            return ()
        shown = tuple(Promise() for _ in range(call.span.frames)) if maker.anchor_horizon else ()
        following = call.then(latents, shown, span, self._condition_of(span.index), stop)
        self._begun = self._begin(maker, following, shown)
        return shown

    def stop(self) -> None:
        """Stop the block under way at its next denoising step. If it fails, that no longer matters."""
        if self._begun:
            self._begun.noise.unwanted.set()
            for promise in self._begun.shown:
                promise.give_up()

    def _begin(self, maker: _Maker, call: _Call, shown: tuple[Promise, ...] = ()) -> _Begun:
        noise = _StoppableNoise(call.noise)

        def work() -> Generated:
            return maker.inner.generate(call.history, call.span, noise, call.condition, call.given, call.stop)

        return _Begun(maker, call, noise, self._lane.submit(work), shown)

    def _call_off(self, asked: Span) -> None:
        """Stop the block under way, as the one now asked for, at `asked`, is another.

        If it failed, its error is raised: it may be the user's interrupt.
        """
        assert self._begun is not None
        self.stop()
        begun, self._begun = self._begun, None
        begun.maker.idle = begun.call.span == asked
        error = begun.made.exception()
        if error is None:
            begun.maker.thrown_away += replace(begun.made.result().work, context_seconds=0.0)
        elif isinstance(error, Unwanted):
            begun.maker.thrown_away += Work(denoising_passes=begun.noise.draws)
        else:
            raise error
