"""Decide who makes a block of a run: the user's direction for it, else the route's policy.

Nothing here is changed by a decision, and scores are asked for only if one depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..settings.decision import Decision, Reason
from ..settings.request import ROUTE_DECIDES, STRENGTHS, DrafterContext, Strength
from ..settings.route import Custom, Gate, Past, Refine, Route, Scores, WorstFrame
from .types import Span

DIRECTED: Mapping[str, Decision] = {
    "d": Decision(accepted=True, reason=Reason.DIRECTED_DRAFT),
    "t": Decision(accepted=False, reason=Reason.DIRECTED_TARGET),
}
"""Directions under which nothing is scored."""
FIRST_FRAMES = 4
"""Frames of a draft that a cascade scores first."""
Frames = tuple[int, ...]
"""Indices of pixel frames in a block, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlock:
    """A block of a run before it is made.

    `place`: its index in the route, which begins with the clip, or after one given as pixels. `direction`: the
    user's letter for it. `strength`: of restyling.
    """

    span: Span
    place: int
    direction: str = ROUTE_DECIDES
    strength: Strength = Strength()


def context_of_drafts(route: Route, asked: DrafterContext) -> DrafterContext:
    """Return what drafts follow: as `asked`, but each other where the target refines them."""
    return "own" if isinstance(route.policy, Refine) else asked


def refining_at(route: Route, block: PlannedBlock) -> Strength | None:
    """Return the strength by which the target makes the block over its draft; None if it does not.

    The route's first block is refined too; one with a direction is a kept draft, or made whole.
    """
    if not isinstance(route.policy, Refine) or block.direction != ROUTE_DECIDES:
        return None
    return Strength(skip=STRENGTHS[route.policy.strength])


def steps_to_draft(route: Route, block: PlannedBlock, decision: Decision | None) -> int | None:
    """Return how many steps of a draft the block needs, None for all.

    `decision`: on the block, if it is certain before drafting. Of a block that the target is certain to make, only
    those steps are needed that it goes on from, perhaps none.
    """
    if decision is None or decision.accepted or refining_at(route, block):
        return None
    return handover_at(route, block)


def handover_at(route: Route, block: PlannedBlock) -> int:
    """Return the number of steps that the drafter hands over if the target makes the block.

    None of the route's first block, of one given to the target by a direction, and of one of which a restyled clip
    replaces as many steps.
    """
    replaced = block.strength.skip >= route.handover
    return 0 if is_made_whole(block) or replaced else route.handover


def steps_left_out(route: Route, block: PlannedBlock, steps: int) -> int:
    """Return how many of its `steps` the target leaves out if it makes the block.

    All but `target_steps` of those that neither a handover nor a restyled clip replaces; none of the route's first
    block and of one given to the target by a direction. If nothing is replaced, the first step is made, as only it
    begins from noise; otherwise the last ones are made.
    """
    if not route.target_steps or is_made_whole(block):
        return 0
    replaced = handover_at(route, block) or block.strength.skip
    return max(steps - replaced - route.target_steps, 0)


def is_made_whole(block: PlannedBlock) -> bool:
    """True if the target makes all steps of the block, should it make it."""
    return block.place < 1 or block.direction == "t"


def decide_early(route: Route, block: PlannedBlock, past: Past) -> Decision | None:
    """Return the decision on a block if it is certain before drafting; None if it depends on scores."""
    if block.direction != ROUTE_DECIDES:
        return DIRECTED.get(block.direction)
    return route.policy.decide_early(block.place, past)


def score_and_decide(route: Route, block: PlannedBlock, count: int, score: Callable[[Frames], Scores]) -> Decision:
    """Score as many of a draft's `count` pixel frames as needed, and decide whether it is kept.

    `score`: returns the scores of frames by their indices.
    """
    frames = tuple(range(count))
    policy = route.policy
    if block.direction != ROUTE_DECIDES:
        return _directed(route, block.direction, score(frames))
    assert isinstance(policy, Gate | Custom), "other policies decide early"
    if not (isinstance(policy, Gate) and policy.cascades) or count <= FIRST_FRAMES:
        return policy.decide(block.place, score(frames))
    first = evenly_spaced(count)
    known = dict(zip(first, score(first), strict=True))
    decision = policy.decide(block.place, tuple(known.values()))
    if decision.accepted and not policy.is_clear(decision):
        others = tuple(frame for frame in frames if frame not in known)
        known |= zip(others, score(others), strict=True)
        decision = policy.decide(block.place, tuple(known[frame] for frame in frames))
    return replace(decision, frame_scores=tuple(map(known.get, frames)))


def evenly_spaced(count: int) -> Frames:
    """Return the indices of the frames scored first: 0, 4, 7, 11 of 12, and 0, 3, 5, 8 of 9."""
    return tuple(round(place * (count - 1) / (FIRST_FRAMES - 1)) for place in range(FIRST_FRAMES))


def _directed(route: Route, direction: str, scores: Scores) -> Decision:
    """Return the user's decision on a scored draft; one with a score that is not finite is rejected."""
    if not all(map(math.isfinite, scores)):
        return Decision(accepted=False, reason=Reason.NOT_FINITE, frame_scores=scores)
    by = route.policy.by if isinstance(route.policy, Gate) else WorstFrame()
    keep = direction == "a"
    reason = Reason.DIRECTED_KEPT if keep else Reason.DIRECTED_REMADE
    return Decision(accepted=keep, reason=reason, score=by.aggregate(scores), frame_scores=scores)
