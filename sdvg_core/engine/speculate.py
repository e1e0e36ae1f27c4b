"""The speculative loop of SDVG (arXiv 2604.17397, Section 3): draft, score, route, generate, commit.

The loop knows nothing of models, files or devices. It yields each block when it is decided; streaming, preview,
progress and interruption are up to the caller. Nothing is undone, as a rejected draft is a value that is not used;
caches that are rolled back, as language models do it, would tie the loop to the models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ..settings.decision import Decision, Reason
from ..settings.request import DrafterContext
from ..settings.route import Route
from .inputs import BlockInputs, Restyle
from .outside import check_frames
from .plan import check_parts
from .protocols import Engine
from .records import BlockRecord, record_block
from .reuse import Reuse
from .routing import (
    PlannedBlock,
    context_of_drafts,
    decide_early,
    handover_at,
    refining_at,
    score_and_decide,
    steps_left_out,
    steps_to_draft,
)
from .session import OwnDrafts, Session
from .types import Block, Generated, History
from .wrappers import drift_of


@dataclass(frozen=True, slots=True, eq=False)
class ShownBlock:
    """A block with its pixel frames `b f c h w`, and the history that ends with it.

    `key`: cache key of the latents' decoded frames; a start clip may show its own in their place.
    `record`: None for a block of the start clip.
    """

    history: History
    frames: Tensor
    key: str
    record: BlockRecord | None = None

    @property
    def block(self) -> Block:
        """The block."""
        return self.history.blocks[-1]


@dataclass(frozen=True, slots=True, eq=False)
class EmittedBlock(ShownBlock):
    """A new block. `draft`: the drafter's version, kept or not, perhaps only its first steps; None without one."""

    record: BlockRecord  # required here
    draft: Generated | None = None


def speculate(
    engine: Engine,
    route: Route,
    blocks: Sequence[PlannedBlock],
    inputs: BlockInputs,
    *,
    drafter_context: DrafterContext = "committed",
    start: History | None = None,
    reuse: Reuse | None = None,
    clock: Callable[[], Any] = time.perf_counter,
) -> Generator[EmittedBlock]:
    """Yield `blocks` in order, each as soon as it is decided.

    `start`: a history to continue, with the anchors that the models' contexts need: the last pixel frame of each of
    the newest `engine.horizon` latent frames. `reuse`: results of earlier runs.
    `clock`: its readings subtract to seconds. Raises `BadInput` if the parts do not fit together, or a model
    returns NaN or infinity.
    """
    check_parts(engine, route, blocks)
    session = Session(engine, inputs.noise, route.handover, clock, reuse)
    history = start or History(horizon=engine.horizon)
    continues_own = engine.drafter is not None and context_of_drafts(route, drafter_context) == "own"
    own_drafts = OwnDrafts(session, [block.span for block in blocks], inputs, history) if continues_own else None
    past: tuple[Decision, ...] = ()

    for planned in blocks:
        span = planned.span
        session.watch.restart()
        call = inputs.call(history, span)
        draft = remake = pixels = frames = None  # frees those of the block before
        decision = decide_early(route, planned, past)

        # 1. Draft: all steps (stop is None), or, if the target is certain to make the block, only those steps that
        # it goes on from (perhaps 0). A drafter that continues its own blocks makes the rest when it needs them.
        stop = steps_to_draft(route, planned, decision)
        if stop != 0:
            if own_drafts:
                draft = own_drafts.draft(span, stop)
            else:
                draft = session.generate("drafter", replace(call, stop=stop))

        # 2. Score the draft's pixel frames, decoded after the committed blocks, and route by the worst one.
        if draft and stop is None:
            pixels = session.decoder.pixels(history, Block(span, draft.latents, call.condition))
            if decision is None:
                # No local for the function: it would hold the pixels while the target runs.
                decision = score_and_decide(
                    route, planned, pixels.count, partial(session.score, pixels, call.condition.text)
                )
                if decision.reason is Reason.NOT_FINITE:
                    session.checks.read()  # raises if the draft has NaN; if its scores alone, the target remakes it

        # 3. Rejected: the target generates the block from the same noise and the same committed state.
        assert decision is not None
        if not decision.accepted:
            pixels = None  # frees the draft's frames and decoder state before the target runs
            call = replace(
                call,
                handed_over=draft.first(handover_at(route, planned)) if draft else (),
                left_out=steps_left_out(route, planned, engine.target_steps),
            )
            strength = refining_at(route, planned)
            if draft and strength:  # the draft takes the place of a clip to restyle
                call = replace(call, restyle=Restyle(strength.skip, strength.share, draft.latents))
            remake = session.generate("target", call)
            pixels = session.decoder.pixels(history, Block(span, remake.latents, call.condition))

        # 4. Commit the winner, with the decoder's state after it and its anchors, for later contexts.
        assert pixels is not None, "a block was neither drafted nor remade"
        frames = pixels.frames()
        check_frames(session.checks, engine.codec, frames, span)
        # One wait for the device: the checks for NaN, which raise, and how far the block's colours are from those
        # that its scene began with. Only what passes is stored.
        drift = session.checks.read(drift_of(pixels.block, history))
        pixels.store()  # and from here on only the anchors are kept in memory
        record = record_block(pixels.block, frames, decision, draft, remake, call, session.watch, drift)
        history = history.commit(pixels.block, pixels.anchors, pixels.state)
        past = (*past, decision)
        yield EmittedBlock(history, frames, pixels.key, record, draft)
