"""The drafter's own history, of all its drafts instead of the committed blocks (an option of the paper)."""

from __future__ import annotations

from dataclasses import replace

from .history import History
from .inputs import BlockInputs
from .pixels import Decoder
from .session import Session
from .types import Block, Cost, Generated, Span


class OwnDrafts:
    """The drafts of a run, each continuing the one before it.

    They do not depend on decisions. Skipped ones are made when a later draft needs them, and decoded only if the
    drafter's context needs pixels.
    """

    def __init__(self, session: Session, spans: tuple[Span, ...], inputs: BlockInputs, start: History) -> None:
        self._session = session
        # Its decode time counts as part of the draft.
        self._decoder = Decoder(session.decoder.codec)
        self._spans = spans
        self._inputs = inputs
        self._history = start
        self._newest: Block | None = None

    def draft(self, span: Span, stop: int | None = None) -> Generated:
        """Generate the draft at `span`, after earlier drafts that were skipped or unfinished, at their joint cost.

        `stop`: as in `BlockCall`.
        """
        caught_up = Cost()
        for skipped in self._spans:
            if self._history.frames <= skipped.start < span.start:
                if self._newest is None or self._newest.span != skipped:
                    caught_up += self._make(skipped).cost
                block = self._newest
                assert block is not None
                pixels = self._decoder.pixels(self._history, block)
                self._history = self._history.commit(block, pixels.anchors, pixels.state)
        made = self._make(span, stop)
        return replace(made, cost=caught_up + made.cost)

    def _make(self, span: Span, stop: int | None = None) -> Generated:
        call = self._inputs.call(self._history, span, stop)
        made = self._session.generate("drafter", call)
        if stop is None:
            self._newest = Block(span, made.latents, call.condition)
        return made
