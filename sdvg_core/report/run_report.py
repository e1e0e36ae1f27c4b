"""The report of a run: its settings, its blocks' records, and what follows from them by arithmetic.

Counters in, rates out. Two conventions of acceptance are in use, and a report gives both: the paper's tables count
every block, of which the first is never a draft's, so they cannot exceed 8 of 9.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine.records import BlockRecord, Seconds
from ..engine.router import REJECTED_BY_SCORE, Reason
from ..errors import BadInput
from ..files.small_files import MEGABYTE, parse_json, read_small
from .privacy import hide_prompt
from .record_json import (
    NONE,
    SECONDS,
    plain,
    record_from_dict,
    record_to_dict,
    seconds_to_dict,
    take,
    take_number,
)

SCHEMA_VERSION = 1
WHERE = "the run report"
LARGEST_FILE = 32 * MEGABYTE  # of ten thousand blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many blocks went which way, in one run or in many.

    `forced`: the target's whatever the draft. `scored`: judged by the scorer. `accepted`: drafts that were kept,
    and `accepted_scored` those of them that were judged. `rejected`: drafts that were judged and thrown away.
    """

    blocks: int = 0
    forced: int = 0
    scored: int = 0
    accepted: int = 0
    accepted_scored: int = 0
    rejected: int = 0

    @property
    def by_target(self) -> int:
        """Blocks the target made, forced ones too."""
        return self.blocks - self.accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over scored; None if nothing was scored."""
        return share(self.accepted_scored, self.scored)

    @property
    def acceptance_rate_unforced(self) -> float | None:
        """Accepted over all blocks but forced ones (the paper's blocks 1 to 8); None if there are none."""
        return share(self.accepted, self.blocks - self.forced)

    @property
    def draft_share(self) -> float | None:
        """Accepted over all blocks, as the paper's tables print it; None if there are none."""
        return share(self.accepted, self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward passes of either model, decodes of a block, and encodes of a single frame."""

    drafter_denoising: int
    drafter_context: int
    target_denoising: int
    target_context: int
    decodes: int
    encodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run was given and what it did.

    `settings`: JSON values: router, sizes, seed, contexts, schedule, presets, and model files by name, without
    their folders. `versions`: of sdvg, torch, diffusers, transformers, python, and the name of the device.
    `notes`: sentences a reader should know. `target_only_seconds`: what the target alone needs for the same
    blocks, and `target_only_source` how that is known, such as "measured" or "predicted from its own blocks".
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    blocks: tuple[BlockRecord, ...]
    fps: float
    notes: tuple[str, ...] = ()
    target_only_seconds: float | None = None
    target_only_source: str | None = None
    schema_version: int = field(default=SCHEMA_VERSION, init=False)

    def __post_init__(self) -> None:
        if not self.blocks:
            raise BadInput("expected a report of at least one block, but there is none; let the run make one first")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise BadInput(f"expected fps above 0, but got {self.fps}; give pixel frames per second, such as 16")
        if (self.target_only_seconds is None) != (self.target_only_source is None):
            raise BadInput(
                f"expected target_only_seconds and target_only_source together, but got {self.target_only_seconds} "
                f"and {self.target_only_source}; say how the seconds are known"
            )

    @property
    def tally(self) -> Tally:
        """Counts of blocks, and acceptance by every convention."""
        decisions = [record.decision for record in self.blocks]
        return Tally(
            blocks=len(decisions),
            forced=sum(d.reason is Reason.FORCED for d in decisions),
            scored=sum(d.scored for d in decisions),
            accepted=sum(d.accepted for d in decisions),
            accepted_scored=sum(d.accepted and d.scored for d in decisions),
            rejected=sum(d.reason in REJECTED_BY_SCORE for d in decisions),
        )

    @property
    def reasons(self) -> dict[Reason, int]:
        """How many blocks were decided for each reason that occurred, in the order of `Reason`."""
        counts = Counter(record.decision.reason for record in self.blocks)
        return {reason: counts[reason] for reason in Reason if counts[reason]}

    @property
    def passes(self) -> Passes:
        """Work of the run, drafts that were thrown away included."""
        drafts = [record.draft for record in self.blocks if record.draft]
        targets = [record.target for record in self.blocks if record.target]
        return Passes(
            drafter_denoising=sum(work.denoising_passes for work in drafts),
            drafter_context=sum(work.context_passes for work in drafts),
            target_denoising=sum(work.denoising_passes for work in targets),
            target_context=sum(work.context_passes for work in targets),
            decodes=sum(record.decodes for record in self.blocks),
            encodes=sum(work.encodes for work in drafts + targets),
        )

    @property
    def seconds(self) -> Seconds:
        """Seconds of all blocks, by part; loading models and reading the prompt are not in it."""
        return Seconds(**{part: math.fsum(getattr(r.seconds, part) for r in self.blocks) for part in SECONDS})

    @property
    def speed_up(self) -> float | None:
        """Target-only seconds over this run's; None if they are not known."""
        spent = self.seconds.total
        return self.target_only_seconds / spent if self.target_only_seconds and spent else None

    @property
    def pixel_frames(self) -> int:
        """Pixel frames of the video."""
        return sum(record.pixel_frames for record in self.blocks)

    @property
    def worst_block(self) -> BlockRecord | None:
        """The block with the lowest finite frame score; None if there is no such score."""
        return min(filter(_has_finite, self.blocks), key=worst_score, default=None)

    def without_prompts(self) -> RunReport:
        """Return the report as it may be passed on: with a hash in the place of every prompt."""
        return replace(self, blocks=tuple(replace(b, prompt=hide_prompt(b.prompt)) for b in self.blocks))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, rates included. Raises `TypeError` if a setting is no JSON value."""
        return {
            "schema_version": self.schema_version,
            "settings": plain(self.settings),
            "versions": plain(self.versions),
            "fps": self.fps,
            "notes": list(self.notes),
            "target_only_seconds": plain(self.target_only_seconds),
            "target_only_source": self.target_only_source,
            "blocks": [record_to_dict(record) for record in self.blocks],
            "totals": self._totals(),
        }

    def _totals(self) -> dict[str, Any]:
        """What follows from the rest; it is not read back."""
        tally = self.tally
        counts = ("blocks", "forced", "scored", "accepted", "rejected", "by_target")
        rates = ("acceptance_rate", "acceptance_rate_unforced", "draft_share")
        return {
            **{name: getattr(tally, name) for name in (*counts, *rates)},
            "pixel_frames": self.pixel_frames,
            "reasons": {reason.name.lower(): count for reason, count in self.reasons.items()},
            "passes": {name: getattr(self.passes, name) for name in Passes.__slots__},
            "seconds": seconds_to_dict(self.seconds),
            "speed_up": self.speed_up,
        }

    def to_json(self) -> str:
        """Return the report as the text of report.json."""
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        # A file name that is no UTF-8 must not keep a finished run from being written; this escape is JSON's too.
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def predict_target_only(blocks: Iterable[BlockRecord]) -> tuple[float, str] | None:
    """Return the seconds the target alone would need for these blocks, and how that is known.

    It is the mean cost of the blocks it did make (denoising, context, one decode), times their number. Block 0 has
    no context and is left out where there are others. None if the target made no block.
    """
    records = tuple(blocks)
    made = [record for record in records if record.target]
    typical = [record for record in made if record.span.start > 0] or made
    if not typical:
        return None
    mean = math.fsum(_target_seconds(record) for record in typical) / len(typical)
    return mean * len(records), f"predicted from {len(typical)} of the blocks that the target made in this run"


def _target_seconds(record: BlockRecord) -> float:
    context = record.target.context_seconds if record.target else 0.0
    return record.seconds.target + context + record.seconds.decode / record.decodes


def report_from_dict(data: Any) -> RunReport:
    """Return the report that `as_dict` wrote; rates are worked out anew.

    Scores that were not finite come back as NaN.
    Raises `BadInput` for a report of a newer version, or if something is missing or of another kind.
    """
    version = take(data, "schema_version", (int,), WHERE)
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"expected a run report of schema version {SCHEMA_VERSION}, but it is of version {version}; "
            "read it with the version of sdvg that wrote it, or a newer one"
        )
    versions = take(data, "versions", (dict,), WHERE)
    notes = take(data, "notes", (list,), WHERE)
    if not all(isinstance(text, str) for text in (*versions.values(), *notes)):
        raise BadInput("expected versions and notes as text, but some are not; use report.json as it was written")
    blocks = take(data, "blocks", (list,), WHERE)
    return RunReport(
        settings=take(data, "settings", (dict,), WHERE),
        versions=versions,
        blocks=tuple(record_from_dict(block, f"entry {i} of blocks") for i, block in enumerate(blocks)),
        fps=take(data, "fps", (float, int), WHERE),
        notes=tuple(notes),
        target_only_seconds=take_number(data, "target_only_seconds", WHERE),
        target_only_source=take(data, "target_only_source", (str, NONE), WHERE),
    )


def read_report(path: Path) -> RunReport:
    """Read a report.json. Raises `BadInput` if it is missing, no JSON, or no report."""
    try:
        data = parse_json(read_small(path, LARGEST_FILE), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"expected a run report at {path}, but it cannot be read ({type(error).__name__}); "
            "give the report.json of a run"
        ) from error
    return report_from_dict(data)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def worst_score(record: BlockRecord) -> float:
    """Return the lowest finite frame score of a block; infinity if it has none."""
    return min(filter(math.isfinite, record.decision.frame_scores), default=math.inf)


def _has_finite(record: BlockRecord) -> bool:
    return math.isfinite(worst_score(record))


def share(part: int, whole: int) -> float | None:
    """Return `part` of `whole`, or None of nothing."""
    return part / whole if whole else None
