"""How a fast execution's video differs from the plain one's: the greatest differences and changed decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sdvg_core.engine.speculate import Emitted

from .measure import Bench
from .variants import Case


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """A complete video. `scores`: the worst of each scored block."""

    latents: Tensor
    frames: Tensor
    scores: tuple[float, ...]


def video_of(bench: Bench, case: Case) -> Video:
    """Make the video of a case, and keep it whole."""
    return collect(tuple(bench.run(case, bench.engine(case)).blocks()))


def collect(emitted: Sequence[Emitted]) -> Video:
    """Join a video's blocks, on the CPU."""
    judged = [one.record.decision.frame_scores for one in emitted]
    return Video(
        latents=torch.cat([one.block.latents.cpu() for one in emitted], dim=2),
        frames=torch.cat([one.frames.cpu() for one in emitted], dim=1),
        scores=tuple(min(scores) for scores in judged if scores),
    )


def compare_videos(plain: Video, fast: Video) -> dict[str, Any]:
    """Return the greatest differences, the size of the latents, and the scored drafts that were decided otherwise.

    Decisions are compared at a tau in the middle of the widest gap between the plain scores. Any other tau might
    depend on the rounding of the score next to it.
    """
    tau = _widest_gap(plain.scores)
    pairs = tuple(zip(plain.scores, fast.scores, strict=True))
    return {
        "latents": _greatest(plain.latents, fast.latents),
        "latents_rms": float(plain.latents.double().square().mean().sqrt()),
        "frames": _greatest(plain.frames, fast.frames),
        "scores": max((abs(a - b) for a, b in pairs), default=0.0),
        "tau": tau,
        "scored_drafts": len(pairs),
        "decided_otherwise": [n for n, (a, b) in enumerate(pairs) if tau is not None and (a >= tau) != (b >= tau)],
    }


def _greatest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _widest_gap(scores: Sequence[float]) -> float | None:
    """Return the middle of the widest gap between scores; None if there are fewer than two."""
    gaps = [(above - below, (above + below) / 2) for below, above in pairwise(sorted(scores))]
    return max(gaps)[1] if gaps else None
