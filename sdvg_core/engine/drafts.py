"""The drafter's own video, for `drafter_context="own"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from .protocols import BlockCall, NoiseSource, VideoCodec
from .timeline import Timeline
from .types import Block, Condition, Generated, Span, Work


class OwnDrafts:
    """The drafter's history of its own drafts, made only as far as the next draft needs it.

    It depends on no decision. `generate`: with the drafter. `pixels`: whether its context asks for decoded ones.
    """

    def __init__(
        self,
        generate: Callable[[BlockCall], Generated],
        codec: VideoCodec,
        spans: tuple[Span, ...],
        noise: NoiseSource,
        condition_of: Callable[[int], Condition],
        start: Timeline,
        *,
        pixels: bool,
    ) -> None:
        self._generate, self._codec, self._pixels = generate, codec, pixels
        self._spans, self._noise, self._condition_of = spans, noise, condition_of
        self._timeline = start
        self._newest: tuple[Span, Tensor] | None = None

    def draft(self, span: Span, stop: int | None = None) -> Generated:
        """Generate the draft at `span`, and first every earlier draft that was skipped or left unfinished.

        The work on those counts as work on this one. `stop`: the step to stop before.
        """
        caught_up = Work()
        for earlier in self._spans:
            if self._timeline.history.frames <= earlier.start < span.start:
                if self._newest is None or self._newest[0] != earlier:
                    caught_up += self._make(earlier).work
                self._commit_newest()
        made = self._make(span, stop)
        return replace(made, work=caught_up + made.work)

    def _make(self, span: Span, stop: int | None = None) -> Generated:
        condition = self._condition_of(span.index)
        made = self._generate(BlockCall(self._timeline.history, span, self._noise, condition, stop=stop))
        if stop is None:
            self._newest = (span, made.latents)
        return made

    def _commit_newest(self) -> None:
        assert self._newest is not None
        span, latents = self._newest
        block = Block(span, latents, self._condition_of(span.index))
        if not self._pixels:
            self._timeline = Timeline(self._timeline.history.commit(block))
            return
        frames, state = self._codec.decode(latents, self._timeline.decode_state)
        self._timeline, _ = self._timeline.commit(block, frames, state, self._codec.temporal_stride)
