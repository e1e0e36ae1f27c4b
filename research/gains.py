"""Measure what the target would have gained on each block: does the score know?

In the anchor-only video, both models generate every block after the first from the same history. The drafts are the
video itself; each of the target's blocks stands alone, as the next block continues from the draft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from sdvg_core.engine.drafts import generate
from sdvg_core.engine.router import RouterConfig
from sdvg_core.engine.run import Run

from .equipment import scorer_of
from .metrics import FrameJudge
from .store import Record


def measure_gains(run: Run, judge: FrameJudge | None) -> Iterator[Record]:
    """Yield for every block but the first its draft's scores, and how good the draft and the target's block are.

    Qualities are means over the block's frames; None without a judge that rates frames one by one.
    """
    drafts, remakes = _both_ways(run)
    text, scorer = run.condition_of(0).gate_text, scorer_of(run.engine)
    qualities = [_qualities(judge, blocks, text) for blocks in (drafts, remakes)]
    for number, (draft, remake) in enumerate(zip(drafts, remakes, strict=True)):
        if number == 0:
            continue
        scores, of_remake = scorer.score(draft, text), scorer.score(remake, text)
        yield {
            "block": run.spans[number].index,
            "worst_score": float(scores.min()),
            "mean_score": float(scores.mean()),
            "target_worst_score": float(of_remake.min()),
            "draft_quality": qualities[0][number],
            "target_quality": qualities[1][number],
        }


def _both_ways(run: Run) -> tuple[list[Tensor], list[Tensor]]:
    """Return every block's frames: those of the anchor-only video, and those the target would have made."""
    engine, drafts, remakes = run.engine, [], []
    before = run.nothing
    for emitted in replace(run, router=RouterConfig(policy="anchor-only")).blocks():
        span = emitted.block.span
        made = generate(engine.target, before, span, run.noise, run.condition_of(span.index))
        frames, _ = engine.judging.decode(made.latents, before.decode_state)
        drafts.append(emitted.preview)
        remakes.append(frames)
        before = emitted.timeline
    return drafts, remakes


def _qualities(judge: FrameJudge | None, blocks: list[Tensor], prompt: str) -> list[float | None]:
    if judge is None:
        return [None] * len(blocks)
    counts = [block.shape[1] for block in blocks]
    seams = tuple(accumulate(counts))[:-1]
    quality = judge.frame_quality(torch.cat(blocks, dim=1)[0].cpu(), prompt, seams)
    return [float(part.mean()) for part in quality.split(counts)]
