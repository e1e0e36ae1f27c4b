"""Overlap: the next block is begun beside the decoding and judging of the newest.

Whoever is to make it goes on from a block as soon as its latents are there, on the guess that they will be
committed; if its context asks for a picture of that block, it waits for that frame and no longer. Generation is a
pure function, so a wrong guess is a value that is not taken, and the video is bit for bit the one that the loop
makes alone. The loop knows nothing of it: it is given models that may have begun already. What the target made is
certain to be committed, so after a remake the guess is always right, and for the target alone nothing is a guess.

It costs the drafter's memory beside the decoder's. On one device the two share what it can compute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .fit import check_overlap
from .history import History
from .lane import Lane, Promise, Unwanted
from .parts import BlockGenerator, Engine, NoiseSource, VideoCodec
from .router import RouterConfig, foresee
from .speculate import DrafterContext, Emitted, speculate
from .timeline import last_frames
from .types import Block, Condition, Generated, Span, Work
from .wrapping import WrappedCodec, WrappedGenerator


def speculate_overlapped(
    engine: Engine,
    router: RouterConfig,
    spans: tuple[Span, ...],
    noise: NoiseSource,
    condition_of: Callable[[int], Condition],
    *,
    device: torch.device,
    drafter_context: DrafterContext = "committed",
    **options: Any,
) -> Iterator[Emitted]:
    """Yield what `speculate` yields, working ahead. Takes the same further options.

    `device`: that of drafter and target. In the records, the seconds of a block that was begun ahead are those that
    it was waited for, and the passes of a draft on a wrong guess count with those of the next one.
    Raises `BadInput` for a drafter that needs the pixels of its own drafts: nothing shows those meanwhile.
    """
    own = drafter_context == "own"
    check_overlap(drafter_context, needs_pixels=engine.drafter.anchor_horizon > 0)
    lane = Lane(device, "sdvg-ahead")
    ahead = _Ahead(lane, condition_of)
    drafter, target = _Maker(engine.drafter, ahead), _Maker(engine.target, ahead)
    for span in spans:
        certain = foresee(router, span.index, ())
        if certain is None or certain.accepted:
            ahead.expect(span, drafter)
        elif not own:
            ahead.expect(span, target)
    parts = replace(
        engine,
        drafter=drafter,
        # With a context of its own the drafter goes on from its drafts, whatever the target makes.
        target=engine.target if own else target,
        codec=_Codec(engine.codec, ahead),
    )
    try:
        yield from speculate(parts, router, spans, noise, condition_of, drafter_context=drafter_context, **options)
    finally:
        ahead.stop()
        lane.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What a model is asked for."""

    history: History
    span: Span
    noise: NoiseSource
    condition: Condition
    given: Sequence[Tensor] = ()

    def same_as(self, other: _Call) -> bool:
        ours, theirs = self.history.blocks, other.history.blocks
        return (
            self.span == other.span
            and self.noise is other.noise
            and self.condition is other.condition
            and not (self.given or other.given)
            and len(ours) == len(theirs)
            and all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))
        )

    def then(self, latents: Tensor, shown: tuple[Promise, ...], span: Span, condition: Condition) -> _Call:
        """Return the call for the block at `span` if `latents`, the result of this one, are committed.

        `shown`: the last pixel frame of each of their frames, if the model may ask for those.
        """
        block = Block(self.span, latents, self.condition)
        after = self.history.commit(block)
        history = _Expected(blocks=after.blocks, horizon=after.horizon, before=self.history, shown=shown)
        return _Call(history, span, self.noise, condition)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Expected(History):
    """A history whose newest block is being decoded."""

    before: History
    shown: tuple[Promise, ...]

    def anchor(self, frame: int) -> Tensor:
        """Return the last pixel frame that latent frame `frame` shows, as soon as it is there."""
        newest = frame - self.before.frames
        return self.shown[newest].take() if newest >= 0 else self.before.anchor(frame)


class _StoppableNoise:
    """Noise that ends the making of a block at its next step, once nobody will take it."""

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
    """A model that may have begun what it is asked for.

    `idle`: it has begun a block and was not asked for one there, as after a bail-out. `thrown_away`: the work on
    blocks that were not taken, since the last that was.
    """

    def __init__(self, inner: BlockGenerator, ahead: _Ahead) -> None:
        super().__init__(inner)
        self._ahead = ahead
        self.idle = False
        self.thrown_away = Work()

    def generate(
        self,
        history: History,
        span: Span,
        noise: NoiseSource,
        condition: Condition,
        given: Sequence[Tensor] = (),
    ) -> Generated:
        return self._ahead.make(self, _Call(history, span, noise, condition, given))


class _Codec(WrappedCodec):
    """A codec that hands on each picture somebody waits for as soon as it is decoded."""

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
        # Joined as a codec joins them, so that whoever reads the frames meets the same strides.
        return torch.cat(pieces, dim=2).transpose(1, 2), state


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A block under way: who makes it, what was asked for, and what will come of it."""

    maker: _Maker
    call: _Call
    noise: _StoppableNoise
    made: Future[Generated]
    shown: tuple[Promise, ...] = ()


class _Ahead:
    """Begins blocks before they are asked for; at most one is under way, and always on the same thread."""

    def __init__(self, lane: Lane, condition_of: Callable[[int], Condition]) -> None:
        self._lane, self._condition_of = lane, condition_of
        self._expected: dict[int, tuple[_Maker, Span]] = {}
        self._newest: tuple[_Call, Tensor] | None = None
        self._begun: _Begun | None = None

    def expect(self, span: Span, maker: _Maker) -> None:
        """Say who will be asked first for the block at `span`."""
        self._expected[span.start] = maker, span

    def make(self, maker: _Maker, call: _Call) -> Generated:
        """Return the block that `maker` is asked for, which it may have begun."""
        if self._begun and not (self._begun.maker is maker and self._begun.call.same_as(call)):
            self._call_off(call.span)
        maker.idle = False
        ahead = self._begun is not None
        begun, self._begun = self._begun or self._begin(maker, call), None
        made = begun.made.result()
        self._lane.hand_over(made.predictions)
        self._newest = call, made.latents
        # The time of a block that was begun ahead is not this one's; only the waiting for it is.
        work = replace(made.work, context_seconds=0.0) if ahead else made.work
        work, maker.thrown_away = maker.thrown_away + work, Work()
        return replace(made, work=work)

    def go_on_from(self, latents: Tensor) -> tuple[Promise, ...]:
        """Begin the block that follows `latents`, if those are the newest one's.

        Return what is waited for: the last pixel frame of each latent frame, or nothing.
        """
        if self._newest is None or self._newest[1] is not latents or self._begun:
            return ()
        call = self._newest[0]
        maker, span = self._expected.get(call.span.stop, (None, call.span))
        if maker is None or maker.idle:
            return ()
        shown = tuple(Promise() for _ in range(call.span.frames)) if maker.anchor_horizon else ()
        self._begun = self._begin(maker, call.then(latents, shown, span, self._condition_of(span.index)), shown)
        return shown

    def stop(self) -> None:
        """Let what is under way end at its next step. What it fails of does not matter any more."""
        if self._begun:
            self._begun.noise.unwanted.set()
            for promise in self._begun.shown:
                promise.give_up()

    def _begin(self, maker: _Maker, call: _Call, shown: tuple[Promise, ...] = ()) -> _Begun:
        noise = _StoppableNoise(call.noise)

        def work() -> Generated:
            return maker.inner.generate(call.history, call.span, noise, call.condition, call.given)

        return _Begun(maker, call, noise, self._lane.submit(work), shown)

    def _call_off(self, asked: Span) -> None:
        """End what is under way, since a block at `asked` is wanted that it does not lead to.

        An error of it is raised: it may be the user who wants to stop.
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
