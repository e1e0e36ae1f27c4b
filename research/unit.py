"""One prompt and seed in all configurations: the videos, and a row of numbers about each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from sdvg_core.engine.records import BlockRecord
from sdvg_core.engine.speculate import Emitted
from sdvg_core.engine.types import Condition
from sdvg_core.report.fates import LETTERS, fate_of
from sdvg_core.report.record_json import SECONDS
from sdvg_core.report.run_report import RunReport

from .equipment import Equipment, configured, scorer_of
from .gains import measure_gains
from .judging import measure_judge
from .memo import Ledger, Sharing
from .protocol import Configuration
from .store import GAINS, JUDGED, ROWS, Record

EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """The work left for one prompt and seed, as values that can be sent between processes.

    `embedding`: of the prompt, `(1, tokens, c)`, packed by `pack`.
    """

    prompt: str
    seed: int
    embedding: bytes
    configurations: tuple[Configuration, ...]
    gains: bool = False
    judged: bool = False

    @property
    def condition(self) -> Condition:
        """What every block should show; a new object each time."""
        return Condition(load(self.embedding)[EMBEDDING], self.prompt, self.prompt)


def pack(embedding: Tensor) -> bytes:
    """Return the bytes of an embedding; a tensor would be sent as a handle to the sender's memory."""
    packed: bytes = save({EMBEDDING: embedding.detach().cpu().contiguous()})
    return packed


def run_unit(equipment: Equipment, unit: Unit) -> Iterator[tuple[str, Record]]:
    """Yield the rows as they are made, each with the name of its file."""
    sharing = Sharing(equipment.engine, equipment.memo_bytes, equipment.clock, equipment.targets)
    run = equipment.run(unit.condition, unit.seed)
    scorer = scorer_of(sharing.engine(Ledger()))
    for configuration in unit.configurations:
        ledger = Ledger()
        engine = sharing.engine(ledger, configuration.target_schedule)
        emitted = list(configured(run, configuration, engine, ledger.time).blocks())
        rewards = [scorer.score(one.frames, unit.prompt) for one in emitted]
        row = {
            "configuration": configuration.name,
            "prompt": unit.prompt,
            "seed": unit.seed,
            **_describe([one.record for one in emitted]),
            "target_calls": ledger.asked["target"],
            "draft_calls": ledger.asked["draft"],
            "passes": _passes([one.record for one in emitted], judged=engine.judge is not None),
            "metrics": {**_reward_metrics(rewards), **_measure(equipment, emitted, unit.prompt)},
            "latents_sha256": _hash(torch.cat([one.block.latents for one in emitted], dim=2)),
            "seconds": _seconds([one.record for one in emitted]),
            "sharing": _shared(ledger),
        }
        yield ROWS, row
    if unit.gains:
        for gain in measure_gains(replace(run, engine=sharing.engine(Ledger())), equipment.judge):
            yield GAINS, {"prompt": unit.prompt, "seed": unit.seed, **gain}
    if unit.judged:
        for scores in measure_judge(run):
            yield JUDGED, {"prompt": unit.prompt, "seed": unit.seed, **scores}


def _describe(records: Sequence[BlockRecord]) -> Record:
    """Return the route, one letter of `fates.LETTERS` per block, and each block's scores; None if unscored."""
    scores = [record.decision.frame_scores for record in records]
    return {
        "route": "".join(LETTERS[fate_of(record)] for record in records),
        "accepted": [record.decision.accepted for record in records],
        "worst_scores": [_finite(min(values)) if values else None for values in scores],
        "mean_scores": [_finite(fmean(values)) if values else None for values in scores],
    }


def _passes(records: Sequence[BlockRecord], *, judged: bool) -> dict[str, int]:
    """Return how many passes of each kind the video took, as if nothing were shared; `scores` are pixel frames.

    `judged`: whether a judge left the video to be decoded by the VAE.

    Only the passes of a growing cache (context policy `incremental`) depend on what was asked before: a block from
    the memo counts those of the row that made it.
    """
    counted = RunReport(settings={}, versions={}, blocks=tuple(records), fps=1.0).passes
    scores = sum(map(scored_frames, (None, *records), records))
    return {**asdict(counted), "scores": scores, "deliveries": len(records) if judged else 0}


def scored_frames(before: BlockRecord | None, record: BlockRecord) -> int:
    """Return how many pixel frames were scored for a block: its draft's, and the last one before it if need be."""
    decision = record.decision
    known = before is not None and before.decision.accepted and before.decision.scored
    return len(decision.frame_scores) + (decision.reference is not None and not known)


def _reward_metrics(rewards: Sequence[Tensor]) -> dict[str, float]:
    """Return the scorer's rating of the emitted video: the mean over frames, and over the blocks' worst frames."""
    means = {
        "reward_mean": torch.cat(list(rewards)).mean(),
        "reward_worst": torch.stack([r.min() for r in rewards]).mean(),
    }
    return {name: float(value) for name, value in means.items()}


def _measure(equipment: Equipment, emitted: Sequence[Emitted], prompt: str) -> dict[str, float]:
    frames = torch.cat([one.frames for one in emitted], dim=1)[0].cpu()
    seams = list(accumulate(one.frames.shape[1] for one in emitted))[:-1]
    measured: dict[str, float] = {}
    for metric in equipment.metrics:
        measured.update(metric.measure(frames, prompt, seams))
    return measured


def _seconds(records: Sequence[BlockRecord]) -> dict[str, float]:
    """Return seconds by part, in total, and until the first block can be shown, as if nothing were shared."""
    parts = {part: math.fsum(getattr(record.seconds, part) for record in records) for part in SECONDS}
    return {**parts, "total": math.fsum(parts.values()), "first_block": records[0].seconds.total}


def _shared(ledger: Ledger) -> dict[str, Any]:
    """Return how many model calls the run asked for, how many were computed, and the seconds of both."""
    return {
        "asked": dict(ledger.asked),
        "made": dict(ledger.made),
        "seconds_asked": ledger.seconds,
        "seconds_made": ledger.seconds_made,
    }


def _hash(latents: Tensor) -> str:
    return hashlib.sha256(latents.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
