"""The decision on a block: who makes it, why, and by which scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why the drafter or the target made a block. The value is shown to users."""

    FORCED = "by rule, whatever the route"
    REACHED = "the score reaches tau"
    FELL_SHORT = "the score is below tau"
    NOT_FINITE = "a frame's score is not a finite number"
    BAILED_OUT = "too many blocks in a row were rejected, so the target makes the rest"
    UNJUDGED_DRAFT = "the route keeps the draft without scoring it"
    UNJUDGED_TARGET = "the route gives the block to the target"
    DIRECTED_DRAFT = "a direction keeps the draft without scoring it"
    DIRECTED_TARGET = "a direction gives the block to the target"
    DIRECTED_KEPT = "a direction keeps the draft"
    DIRECTED_REMADE = "a direction rejects the draft"
    ROUTER_KEPT = "the router keeps the draft"
    ROUTER_REMADE = "the router rejects the draft"
    REFINED = "the route has the target refine the draft"


REJECTED = (Reason.FELL_SHORT, Reason.NOT_FINITE, Reason.ROUTER_REMADE)
BY_DIRECTION = (Reason.DIRECTED_DRAFT, Reason.DIRECTED_TARGET, Reason.DIRECTED_KEPT, Reason.DIRECTED_REMADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the draft is kept, why, and by which scores.

    `score`: aggregated, or None if nothing was scored. `threshold`: the one it was compared with. `frame_scores`:
    one per pixel frame, None for frames that were not scored.
    """

    accepted: bool
    reason: Reason
    score: float | None = None
    threshold: float | None = None
    frame_scores: tuple[float | None, ...] = ()

    @property
    def scored(self) -> bool:
        """True if the draft was scored."""
        return bool(self.frame_scores)

    @property
    def worst_frame(self) -> int | None:
        """The index in the block of the frame with the lowest score, or of the first that is not finite."""
        ranked = {
            frame: score if math.isfinite(score) else -math.inf
            for frame, score in enumerate(self.frame_scores)
            if score is not None
        }
        return min(ranked, key=lambda frame: ranked[frame], default=None)

    @property
    def known_scores(self) -> tuple[float, ...]:
        """The scores of the frames that were scored."""
        return tuple(score for score in self.frame_scores if score is not None)


UNSCORED_DRAFT = Decision(accepted=True, reason=Reason.UNJUDGED_DRAFT)
UNSCORED_TARGET = Decision(accepted=False, reason=Reason.UNJUDGED_TARGET)
FORCED = Decision(accepted=False, reason=Reason.FORCED)
BAILED_OUT = Decision(accepted=False, reason=Reason.BAILED_OUT)
REFINED = Decision(accepted=False, reason=Reason.REFINED)
