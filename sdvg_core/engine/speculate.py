"""The speculative loop of SDVG (arXiv 2604.17397, Section 3): draft, decode, score, route, generate, commit.

This file knows nothing of models, files or devices. It takes a drafter, a target, a codec and a scorer, and yields
each block once it is decided. Streaming, preview, progress and interruption are up to the caller. Nothing is ever
undone: a rejected draft is simply a value that is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .cascade import score_and_decide
from .drift import drift_of
from .inputs import BlockInputs
from .plan import check_parts
from .protocols import BlockCall, BlockGenerator, Engine
from .records import BlockRecord, Stopwatch, record_block
from .router import Decision, Reason, RouterConfig, decide_early
from .timeline import DecodedBlock, OwnDrafts, Timeline, begin_clip, earlier
from .types import Block, DrafterContext, FiniteChecks, Generated, Span, check_finite


@dataclass(frozen=True, slots=True, eq=False)
class EmittedBlock(DecodedBlock):
    """A new block of the video.

    `draft`: the drafter's version, kept or not, perhaps only its first steps; None if nothing was drafted.
    """

    record: BlockRecord
    draft: Generated | None = None


def speculate(
    engine: Engine,
    router: RouterConfig,
    spans: tuple[Span, ...],
    inputs: BlockInputs,
    *,
    drafter_context: DrafterContext = "committed",
    start: Timeline | None = None,
    past: tuple[Decision, ...] = (),
    clock: Callable[[], Any] = time.perf_counter,
) -> Generator[EmittedBlock]:
    """Yield the blocks at `spans`, in order, each as soon as it is decided.

    `start`: a timeline to continue, with the engine's horizon. `past`: when a stopped run is resumed, the decisions
    on the first of `spans`, whose blocks `start` already holds. `clock`: its readings subtract to seconds.
    Raises `BadInput` if the parts do not fit together, or if a model returns NaN or infinity.
    """
    check_parts(engine, router, spans)
    committed = start or begin_clip(engine)
    checks = FiniteChecks()
    drafts = None
    if engine.drafter and drafter_context == "own":
        pixels = engine.drafter.anchor_horizon > 0
        origin = earlier(committed, len(past), engine.codec, pixels=pixels)
        drafts = OwnDrafts(
            partial(generate, engine.drafter, checks=checks), engine.codec, spans, inputs, origin, pixels=pixels
        )

    for span in spans[len(past) :]:
        watch = Stopwatch(clock)
        call = inputs.call(committed.history, span)
        draft = remake = winner = None
        decision = decide_early(router, span.index, past)
        handover = router.handover_at(span.index)

        # 1. Draft. If the target is certain to make the block, the drafter makes only the steps it hands over.
        stop = handover if decision and not decision.accepted else None
        if stop != 0:
            with watch.part("draft"):
                draft = (
                    drafts.draft(span, stop)
                    if drafts
                    else generate(engine.drafter, replace(call, stop=stop), checks)
                )

        # 2. Decode it after the committed blocks, score its pixel frames, and route by the worst one.
        if draft and stop is None:
            with watch.part("decode"):
                winner = committed.decode(Block(span, draft.latents, call.condition), engine.codec)
            if decision is None:
                assert engine.scorer is not None, "check_parts asks for one"
                text = call.condition.gate_text
                with watch.part("score"):
                    decision = score_and_decide(router, span.index, winner.frames, engine.scorer, text)
                if decision.reason is Reason.NOT_FINITE:
                    checks.read()  # perhaps the draft's own fault: then no target pass is wasted on it

        # 3. Rejected: the target generates the block from the same noise and the same committed state.
        assert decision is not None
        if not decision.accepted:
            winner = None  # frees the draft's frames and decoder state before the target runs
            call = replace(call, handed_over=draft.predictions[:handover] if draft else ())
            with watch.part("target"):
                remake = generate(engine.target, call, checks)
            with watch.part("decode"):
                winner = committed.decode(Block(span, remake.latents, call.condition), engine.codec)

        # 4. Commit the winner.
        assert winner is not None, "a block that is not the target's was drafted"
        checks.add(winner.frames, span, "decoded frames")
        drift = checks.read(drift_of(winner.block, call.history))
        committed = winner.timeline
        past = (*past, decision)
        record = record_block(winner.block, winner.frames, decision, draft, remake, call, watch, drift)
        yield EmittedBlock(committed, winner.frames, record, draft=draft)


def generate(model: BlockGenerator | None, call: BlockCall, checks: FiniteChecks | None = None) -> Generated:
    """Generate a block. Raises `BadInput` naming the block and the model if its latents are not finite.

    `checks`: those in which to look later; None to look at once.
    """
    assert model is not None, "check_parts asks for it"
    made = model.generate(call)
    what = f"{model.name} latents"
    if checks:
        checks.add(made.latents, call.span, what)
    else:
        check_finite(made.latents, call.span, what)
    return made
