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

from torch import Tensor

from .plan import check_parts
from .protocols import BlockCall, BlockGenerator, Engine, NoiseSource
from .records import BlockRecord, Stopwatch, record_block
from .router import Decision, RouterConfig, decide, decide_early
from .timeline import OwnDrafts, Timeline, begin_clip, earlier
from .types import Block, Condition, DrafterContext, Generated, Span, check_finite


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A block from one model, decoded as it would look after the committed ones."""

    made: Generated
    frames: Tensor
    decode_state: Any


@dataclass(frozen=True, slots=True, eq=False)
class EmittedBlock:
    """A block of the video, how it was made, and the timeline that ends with it.

    `frames`: its pixel frames `b f c h w`. `draft`: the drafter's version, kept or not, perhaps only its first
    steps; None if nothing was drafted.
    """

    block: Block
    frames: Tensor
    record: BlockRecord
    timeline: Timeline
    draft: Generated | None = None


def speculate(
    engine: Engine,
    router: RouterConfig,
    spans: tuple[Span, ...],
    noise: NoiseSource,
    condition_of: Callable[[int], Condition],
    *,
    drafter_context: DrafterContext = "committed",
    start: Timeline | None = None,
    past: tuple[Decision, ...] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[EmittedBlock]:
    """Yield the blocks at `spans`, in order, each as soon as it is decided.

    `condition_of`: what a block should show, by its number. `start`: a timeline to continue, with the engine's
    horizon. `past`: when a stopped run is resumed, the decisions on the first of `spans`, whose blocks `start`
    already holds. `clock`: seconds; on an accelerator, one that waits for the device.
    Raises `BadInput` if the parts do not fit together, or if a model returns NaN or infinity.
    """
    check_parts(engine, router, spans)
    drafter = engine.drafter
    target = engine.target
    codec = engine.codec
    scorer = engine.scorer
    committed = start or begin_clip(engine)
    own = None
    if drafter_context == "own":
        pixels = drafter.anchor_horizon > 0
        origin = earlier(committed, len(past), codec, pixels=pixels)
        own = OwnDrafts(partial(generate, drafter), codec, spans, noise, condition_of, origin, pixels=pixels)

    for span in spans[len(past) :]:
        condition, watch = condition_of(span.index), Stopwatch(clock)
        call = BlockCall(committed.history, span, noise, condition)
        draft = remake = winner = None
        decision, handover = decide_early(router, span.index, past), router.handover_at(span.index)

        # 1. Draft. If the target is certain to make the block, the drafter makes only the steps it hands over.
        stop = handover if decision and not decision.accepted else None
        if stop != 0:
            with watch.part("draft"):
                draft = own.draft(span, stop) if own else generate(drafter, replace(call, stop=stop))

        # 2. Decode it after the committed blocks, score every pixel frame, and route by the worst one.
        if draft and stop is None:
            with watch.part("decode"):
                winner = Candidate(draft, *codec.decode(draft.latents, committed.decode_state))
            if decision is None:
                assert scorer is not None, "check_parts asks for one"
                with watch.part("score"):
                    scores = scorer.score(winner.frames, condition.gate_text)
                decision = decide(router, span.index, scores)

        # 3. Rejected: the target generates the block from the same noise and the same committed state.
        assert decision is not None
        draft_steps = draft.predictions[:handover] if draft and not decision.accepted else ()
        if not decision.accepted:
            winner = None  # frees the draft's frames and decoder state before the target runs
            with watch.part("target"):
                remake = generate(target, replace(call, given=draft_steps))
            with watch.part("decode"):
                winner = Candidate(remake, *codec.decode(remake.latents, committed.decode_state))

        # 4. Commit the winner.
        assert winner is not None, "a block that is not the target's was drafted"
        check_finite(winner.frames, span, "decoded frames")
        block = Block(span, winner.made.latents, condition)
        committed = committed.commit(block, winner.frames, winner.decode_state, codec.temporal_stride)
        past = (*past, decision)
        works = (draft.work if draft else None, remake.work if remake else None)
        record = record_block(block, winner.frames, decision, *works, len(draft_steps), watch, call.history)
        yield EmittedBlock(block, winner.frames, record, committed, draft)


def generate(model: BlockGenerator, call: BlockCall) -> Generated:
    """Generate a block. Raises `BadInput` naming the block and the model if its latents are not finite."""
    made = model.generate(call)
    check_finite(made.latents, call.span, f"{model.name} latents")
    return made
