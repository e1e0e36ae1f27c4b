"""Score a few frames of a draft first, and the others only where those do not decide.

The worst of some frames is never below the worst of all. So a draft whose first frames fall short is rejected
by them alone; only keeping a draft without looking at the others is a guess, which a margin above tau makes
safer. Source: the authors' SDVG-hybrid. Its margin is not published; it also rejects by one, which needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .router import Decision, RouterConfig, decide, float32

FIRST_FRAMES = 4
Frames = tuple[int, ...]
"""Numbers of a block's pixel frames, from 0."""


def stages(config: RouterConfig, index: int, count: int) -> tuple[Frames, ...]:
    """Return which of the `count` pixel frames of block `index` are scored first, and which after them."""
    frames = tuple(range(count))
    if not cascades(config, index) or count <= FIRST_FRAMES:
        return (frames,)
    first = evenly_spaced(count)
    return first, tuple(frame for frame in frames if frame not in first)


def cascades(config: RouterConfig, index: int) -> bool:
    """Return True if some frames of block `index` are scored first: a cascade is set, and can decide."""
    by_worst_frame = config.aggregation == "min" and config.part is None
    return config.cascade is not None and by_worst_frame and config.direction(index) not in ("a", "r")


def evenly_spaced(count: int) -> Frames:
    """Return the frames that are scored first: 0, 4, 7, 11 of 12, and 0, 3, 5, 8 of 9."""
    return tuple(round(place * (count - 1) / (FIRST_FRAMES - 1)) for place in range(FIRST_FRAMES))


def score_and_decide(config: RouterConfig, index: int, count: int, score: Callable[[Frames], Tensor]) -> Decision:
    """Score as many of the `count` pixel frames of a drafted block as it takes, and decide whether it is kept.

    `score`: returns the scores of the frames with these numbers, as `Scorer.score` does.
    """
    first, *others = stages(config, index, count)
    scores = score(first)
    decision = decide(config, index, scores)
    if not others:
        return decision
    known = dict(zip(first, scores.tolist(), strict=True))
    if decision.accepted and not clearly_kept(config, decision):
        [rest] = others
        known |= zip(rest, score(rest).tolist(), strict=True)
        decision = decide(config, index, torch.tensor([known[frame] for frame in range(count)]))
    return replace(decision, frame_scores=tuple(map(known.get, range(count))))


def clearly_kept(config: RouterConfig, decision: Decision) -> bool:
    """Return True if the worst of the first frames is so far above tau that the others stay unscored."""
    assert decision.score is not None
    assert config.cascade is not None
    return decision.score >= float32(config.tau) + config.cascade
