"""Score a few frames of a draft first, and the others only where those do not decide.

The worst of some frames is never below the worst of all. So a draft whose first frames fall short is rejected
whatever the others show; only keeping a draft without looking at them is a guess, which a margin above tau makes
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
    """Return whether some frames of block `index` are scored first: if a cascade is asked for, and can decide."""
    by_worst_frame = config.aggregation == "min" and config.part is None
    return config.cascade is not None and by_worst_frame and config.direction(index) not in ("a", "r")


def evenly_spaced(count: int) -> Frames:
    """Return the frames that are scored first: 0, 4, 7, 11 of 12, and 0, 3, 5, 8 of 9."""
    return tuple(round(place * (count - 1) / (FIRST_FRAMES - 1)) for place in range(FIRST_FRAMES))


def score_and_decide(
    config: RouterConfig, index: int, frames: Tensor, score: Callable[[Tensor], Tensor]
) -> Decision:
    """Score the pixel frames of a drafted block, `b f c h w`, as many as it takes, and decide whether it is kept.

    `score`: returns the scores of frames, as `Scorer.score` does.
    """
    scores: dict[int, float] = {}
    count = frames.shape[1]
    for chosen in stages(config, index, count):
        shown = frames if len(chosen) == count else frames[:, list(chosen)]
        scores |= zip(chosen, score(shown).tolist(), strict=True)
        scored = torch.tensor([scores[frame] for frame in sorted(scores)], dtype=torch.float32)
        decision = decide(config, index, scored)
        if not decision.accepted or clearly_kept(config, decision):
            break
    return replace(decision, frame_scores=tuple(map(scores.get, range(count))))


def clearly_kept(config: RouterConfig, decision: Decision) -> bool:
    """Return whether the worst of the frames that were scored is far enough above tau for the others to stay so."""
    if decision.score is None or config.cascade is None:
        return False
    return decision.score >= float32(config.tau) + config.cascade
