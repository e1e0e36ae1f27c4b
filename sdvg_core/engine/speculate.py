"""The speculative loop of SDVG (arXiv 2604.17397, Section 3): draft, decode, score, route, generate, commit.

This file knows nothing of models, files or devices. It takes a drafter, a target, a codec and a scorer, and yields
each block once it is decided. Streaming, preview, progress and interruption are up to the caller. Nothing is ever
undone: a rejected draft is simply a value that is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .drafts import OwnDrafts, check_finite, generate
from .fit import check_parts
from .history import History
from .parts import Engine, NoiseSource
from .records import BlockRecord, Stopwatch, record_block
from .router import Decision, RouterConfig, decide, foresee
from .timeline import Timeline, earlier
from .types import Block, Condition, Generated, Span

DrafterContext = Literal["committed", "own"]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A block from one model, decoded as it would look after the committed ones."""

    made: Generated
    frames: Tensor
    decode_state: Any


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """A block of the video, its pixel frames `b f c h w`, how it was made, and the timeline that ends with it.

    `draft`: the drafter's block, whether it was kept or not; None if nothing was drafted.
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
) -> Iterator[Emitted]:
    """Yield the blocks at `spans`, in order, each as soon as it is decided.

    `condition_of`: what a block should show, by its number. `start`: a timeline to continue, with the engine's
    horizon. `past`: when a stopped run is resumed, the decisions on the first of `spans`, whose blocks `start`
    already holds. `clock`: seconds; on an accelerator, one that waits for the device.
    Raises `BadInput` if the parts do not fit together, or if a model returns NaN or infinity.
    """
    check_parts(engine, router, spans)
    drafter, target, codec, scorer = engine.drafter, engine.target, engine.codec, engine.scorer
    committed = start or Timeline(History(horizon=engine.horizon))
    own = None
    if drafter_context == "own":
        own = OwnDrafts(drafter, codec, spans, noise, condition_of, earlier(committed, len(past), codec))

    for span in spans[len(past) :]:
        condition, watch = condition_of(span.index), Stopwatch(clock)
        draft = remake = winner = None
        decision = foresee(router, span.index, past)

        # 1. Draft, and decode after the committed blocks; skipped if the target is certain to make the block.
        if decision is None or decision.accepted:
            with watch.part("draft"):
                draft = own.draft(span) if own else generate(drafter, committed, span, noise, condition)
            with watch.part("decode"):
                winner = Candidate(draft, *codec.decode(draft.latents, committed.decode_state))

            # 2. Score every pixel frame, and route by the worst one.
            if decision is None:
                assert scorer is not None, "check_parts asks for one"
                with watch.part("score"):
                    scores = scorer.score(winner.frames, condition.gate_text)
                decision = decide(router, span.index, scores, past, len(spans))

        # 3. Rejected: the target generates the block from the same noise and the same committed state.
        if not decision.accepted:
            winner = None  # frees the draft's frames and decoder state before the target runs
            taken_over = draft.predictions[: router.repair_step] if draft else ()
            with watch.part("target"):
                remake = generate(target, committed, span, noise, condition, taken_over)
            with watch.part("decode"):
                winner = Candidate(remake, *codec.decode(remake.latents, committed.decode_state))

        # 4. Commit the winner.
        assert winner is not None, "a block that is not the target's was drafted"
        check_finite(winner.frames, span, "decoded frames")
        block = Block(span, winner.made.latents, condition)
        committed = committed.commit(block, winner.frames, winner.decode_state, codec.temporal_stride)
        past = (*past, decision)
        works = (draft.work if draft else None, remake.work if remake else None)
        record = record_block(block, winner.frames, decision, *works, watch)
        yield Emitted(block, winner.frames, record, committed, draft)
