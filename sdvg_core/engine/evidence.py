"""What the router decides a block by: the scores of its draft, and of the last frame committed before it."""

from __future__ import annotations

from torch import Tensor

from .parts import Scorer
from .router import Decision, RouterConfig, compares
from .timeline import Timeline
from .types import Condition, Span


def look(
    scorer: Scorer,
    router: RouterConfig,
    span: Span,
    frames: Tensor,
    committed: Timeline,
    condition: Condition,
    past: tuple[Decision, ...],
) -> tuple[Tensor, float | None]:
    """Return the scores of a draft's `frames`, `(f,)`, and that of the last committed frame if the router compares.

    A frame that was scored as part of a draft is not scored again, unless the prompt has changed since.
    """
    scores = scorer.score(frames, condition.gate_text)
    if not compares(router, span.index):
        return scores, None
    assert committed.shown is not None, "a timeline that ends with a block shows its last frame"
    newest = committed.history.blocks[-1].condition
    if past and past[-1].accepted and past[-1].scored and newest.gate_text == condition.gate_text:
        return scores, past[-1].frame_scores[-1]
    return scores, float(scorer.score(committed.shown, condition.gate_text)[-1])
