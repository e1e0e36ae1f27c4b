"""Records and reports of runs that never ran, decided by the real router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sdvg_core.engine.records import BlockRecord, Seconds
from sdvg_core.engine.types import Cost, Span
from sdvg_core.report.run_report import RunReport
from sdvg_core.settings.decision import Decision, Reason
from sdvg_core.settings.fields import float32
from sdvg_core.settings.route import Custom, Gate, Route

DRAFT = Cost(denoising_passes=4, context_passes=1, encodes=1, context_seconds=0.25)
TARGET = Cost(denoising_passes=4, context_passes=2, encodes=0, context_seconds=0.5)
SECONDS = Seconds(draft=1.5, decode=0.5, score=0.25, target=8.0, context=0.75)


def record(
    decision: Decision, index: int = 0, prompt: str = "a red fox in snow", seconds: Seconds = SECONDS
) -> BlockRecord:
    refined = decision.reason is Reason.REFINED
    drafted = decision.accepted or decision.scored or refined
    return BlockRecord(
        span=Span(index, 3 * index, 3),
        pixel_frames=12 if index else 9,
        prompt=prompt,
        decision=decision,
        draft=DRAFT if drafted else None,
        target=None if decision.accepted else replace(TARGET, denoising_passes=2) if refined else TARGET,
        decodes=1 + (decision.scored and not decision.accepted),
        refined=2 * refined,
        seconds=seconds,
    )


def route(config: Route, scores: Sequence[Sequence[float]]) -> tuple[Decision, ...]:
    """The real policy's decisions, given the frame scores each block's draft would have."""
    past: tuple[Decision, ...] = ()
    for place, frames in enumerate(scores):
        decision = config.policy.decide_early(place, past)
        if decision is None:
            assert isinstance(config.policy, Gate | Custom)
            decision = config.policy.decide(place, tuple(map(float32, frames)))
        past = (*past, decision)
    return past


def report(decisions: Sequence[Decision], **given: Any) -> RunReport:
    settings = {
        "route": {"policy": {"kind": "Gate", "tau": -0.7}},
        "size": [832, 480],
        "seed": 42,
        "drafter": "small.pt",
    }
    blocks = tuple(record(decision, index) for index, decision in enumerate(decisions))
    usual = {"settings": settings, "versions": {"sdvg": "0.1.0"}, "fps": 24, "blocks": blocks}
    return RunReport(**{**usual, **given})


def of_every_reason() -> tuple[Decision, ...]:
    """One decision of every kind, with the thresholds and scores JSON cannot say."""
    return (
        Decision(accepted=False, reason=Reason.FORCED),
        Decision(accepted=True, reason=Reason.REACHED, score=-0.31, threshold=-0.7, frame_scores=(0.5, -0.31, 1.0)),
        Decision(accepted=True, reason=Reason.REACHED, score=0.5, threshold=-math.inf, frame_scores=(0.5,)),
        Decision(accepted=False, reason=Reason.FELL_SHORT, score=-1.31, threshold=-0.7, frame_scores=(0.1, -1.31)),
        Decision(accepted=False, reason=Reason.FELL_SHORT, score=2.0, threshold=math.inf, frame_scores=(2.0,)),
        Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=(0.25, math.nan, -0.5)),
        Decision(accepted=False, reason=Reason.BAILED_OUT),
        Decision(accepted=True, reason=Reason.UNJUDGED_DRAFT),
        Decision(accepted=False, reason=Reason.UNJUDGED_TARGET),
        Decision(accepted=True, reason=Reason.ROUTER_KEPT, score=-3.0, frame_scores=(-3.0, -1.0)),
        Decision(accepted=False, reason=Reason.ROUTER_REMADE, score=1.0, frame_scores=(1.0, 2.0)),
        Decision(accepted=True, reason=Reason.DIRECTED_DRAFT),
        Decision(accepted=False, reason=Reason.DIRECTED_TARGET),
        Decision(accepted=True, reason=Reason.DIRECTED_KEPT, score=-3.0, frame_scores=(-3.0, -1.0)),
        Decision(accepted=False, reason=Reason.DIRECTED_REMADE, score=1.0, frame_scores=(1.0, 2.0)),
        Decision(accepted=False, reason=Reason.REFINED),
    )
