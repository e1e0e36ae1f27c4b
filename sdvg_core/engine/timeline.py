"""A history with the decoder's state at its end, by decoding existing blocks or by the drafter's own drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .history import History
from .inputs import BlockInputs
from .protocols import BlockCall, Engine, VideoCodec
from .records import BlockRecord
from .types import Block, Cost, Generated, Span


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A history with the decoder's state at its end: everything the next block depends on.

    `decode_state`: of the codec.
    """

    history: History = field(default_factory=History)
    decode_state: Any = None

    def decode(self, block: Block, codec: VideoCodec) -> DecodedBlock:
        """Decode `block`, which follows. This timeline stays as it is, so a block may be dropped."""
        frames, state = codec.decode(block.latents, self.decode_state)
        return DecodedBlock(self.commit(block, frames, state, codec.temporal_stride), frames)

    def commit(self, block: Block, frames: Tensor, decode_state: Any, temporal_stride: int) -> Timeline:
        """Return the timeline with `block` appended, which the codec decoded into `frames`, `b f c h w`."""
        history = self.history.commit(block, last_frames(frames, block.span.frames, temporal_stride))
        return Timeline(history, decode_state)


def last_frames(frames: Tensor, latent_frames: int, temporal_stride: int) -> tuple[Tensor, ...]:
    """Return copies of the last pixel frame of each latent frame of a block, so that the block can be freed."""
    newest = frames.shape[1] - 1
    backs = reversed(range(latent_frames))
    return tuple(frames[:, newest - i * temporal_stride, None].clone() for i in backs)


@dataclass(frozen=True, slots=True, eq=False)
class DecodedBlock:
    """A block's pixel frames `b f c h w`, and the timeline that ends with it.

    `record`: how it was made; None if it is of the start clip, or not decided. `stored`: whether its pixels had
    been kept, so that it was not decoded for this.
    """

    timeline: Timeline
    frames: Tensor
    record: BlockRecord | None = None
    stored: bool = False

    @property
    def block(self) -> Block:
        """The block itself."""
        return self.timeline.history.blocks[-1]


def begin_clip(engine: Engine) -> Timeline:
    """Return the timeline of a clip without blocks."""
    return Timeline(History(horizon=engine.horizon))


def replay(blocks: tuple[Block, ...], codec: VideoCodec, start: Timeline) -> Iterator[DecodedBlock]:
    """Decode `blocks`, which follow `start`, with the codec whose state `start` holds."""
    timeline = start
    for block in blocks:
        decoded = timeline.decode(block, codec)
        timeline = decoded.timeline
        yield decoded


def earlier(timeline: Timeline, blocks: int, codec: VideoCodec, *, pixels: bool) -> Timeline:
    """Return `timeline` as it was `blocks` blocks ago.

    `pixels`: whether a model will ask for them; they are then decoded with `codec` from the start.
    """
    if not blocks:
        return timeline
    kept = timeline.history.blocks[: len(timeline.history.blocks) - blocks]
    horizon = timeline.history.horizon
    if not pixels:
        return Timeline(History(blocks=kept, horizon=horizon))
    before = Timeline(History(horizon=horizon))
    for decoded in replay(kept, codec, before):
        before = decoded.timeline
    return before


class OwnDrafts:
    """The drafter's history of its own drafts, which are made when the next draft needs them.

    It depends on no decision. `generate`: calls the drafter. `pixels`: whether its context asks for pixels.
    """

    def __init__(
        self,
        generate: Callable[[BlockCall], Generated],
        codec: VideoCodec,
        spans: tuple[Span, ...],
        inputs: BlockInputs,
        start: Timeline,
        *,
        pixels: bool,
    ) -> None:
        self._generate = generate
        self._codec = codec
        self._spans = spans
        self._inputs = inputs
        self._timeline = start
        self._pixels = pixels
        self._newest: Block | None = None

    def draft(self, span: Span, stop: int | None = None) -> Generated:
        """Generate the draft at `span`, after every earlier draft that was skipped or left unfinished.

        Their cost counts as this one's. `stop`: the step to stop before.
        """
        caught_up = Cost()
        for skipped in self._spans:
            if self._timeline.history.frames <= skipped.start < span.start:
                if self._newest is None or self._newest.span != skipped:
                    caught_up += self._make(skipped).cost
                self._commit_newest()
        made = self._make(span, stop)
        return replace(made, cost=caught_up + made.cost)

    def _make(self, span: Span, stop: int | None = None) -> Generated:
        call = self._inputs.call(self._timeline.history, span, stop)
        made = self._generate(call)
        if stop is None:
            self._newest = Block(span, made.latents, call.condition)
        return made

    def _commit_newest(self) -> None:
        block = self._newest
        assert block is not None
        if self._pixels:
            self._timeline = self._timeline.decode(block, self._codec).timeline
        else:
            self._timeline = Timeline(self._timeline.history.commit(block))
