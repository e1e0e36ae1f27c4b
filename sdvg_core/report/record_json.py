"""One block's record as JSON values, and back.

JSON has no NaN or infinity, so numbers that are not finite are written as null; the record's reason says which they
were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..engine.records import BlockRecord, Seconds
from ..engine.router import Decision, Reason
from ..engine.types import Span, Work
from ..errors import BadInput

SECONDS = ("draft", "decode", "score", "target", "context")
REASONS = {reason.name.lower(): reason for reason in Reason}
NONE = type(None)
LARGEST = 10**15


def record_to_dict(record: BlockRecord) -> dict[str, Any]:
    """Return a record as JSON values."""
    decision = record.decision
    values = {
        "index": record.span.index,
        "start": record.span.start,
        "latent_frames": record.span.frames,
        "take": record.span.take,
        "pixel_frames": record.pixel_frames,
        "prompt": record.prompt,
        "author": record.author,
        "accepted": decision.accepted,
        "reason": decision.reason.name.lower(),
        "reason_text": decision.reason.value,
        "score": decision.score,
        "threshold": decision.threshold,
        "reference": decision.reference,
        "frame_scores": decision.frame_scores,
        "worst_frame": decision.worst_frame,
        "draft": asdict(record.draft) if record.draft else None,
        "target": asdict(record.target) if record.target else None,
        "handover": record.handover,
        "decodes": record.decodes,
        "reused": record.reused,
        "seconds": seconds_to_dict(record.seconds),
    }
    return {name: plain(value) for name, value in values.items()}


def record_from_dict(data: Mapping[str, Any], where: str) -> BlockRecord:
    """Return the record that `data` was written from; errors call it `where`.

    Reports from before there were takes, re-use, handovers and references lack those fields.
    Raises `BadInput` if something is missing or of the wrong type.
    """
    index, start, frames = (take_count(data, name, where) for name in ("index", "start", "latent_frames"))
    return BlockRecord(
        span=Span(index, start, frames, take_count({"take": 1, **data}, "take", where, least=1)),
        pixel_frames=take_count(data, "pixel_frames", where),
        prompt=take(data, "prompt", (str,), where),
        decision=_decision(data, where),
        draft=_work(data, "draft", where),
        target=_work(data, "target", where),
        handover=take_count({"handover": 0, **data}, "handover", where),
        decodes=take_count(data, "decodes", where, least=1),
        reused=take({"reused": False, **data}, "reused", (bool,), where),
        seconds=_seconds(data, where),
    )


def seconds_to_dict(seconds: Seconds) -> dict[str, float]:
    """Return seconds by part and in total."""
    return {**asdict(seconds), "total": seconds.total}


def plain(value: Any) -> Any:
    """Return `value` as JSON values: tuples as lists, numbers that are not finite as None.

    Raises `TypeError` for anything else, such as a path, which does not belong in a file that people pass on.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(inner) for inner in value]
    raise TypeError(f"a report holds JSON values, but got {type(value).__name__}; give text or a number")


def take(data: Any, name: str, kinds: tuple[type, ...], where: str) -> Any:
    """Return `data[name]`, which must be of one of `kinds`; a bool is not a number, and numbers must be finite."""
    if not isinstance(data, Mapping) or name not in data:
        raise BadInput(f"{where} has no field {name}; use report.json unchanged, as a run wrote it")
    return _of_kind(data[name], name, kinds, where)


def _of_kind(value: Any, name: str, kinds: tuple[type, ...], where: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("null" if kind is NONE else kind.__name__ for kind in kinds)
        raise _broken(where, name, wanted, type(value).__name__)
    # The limit holds for whole numbers too: larger ones may not fit a float, and nothing in a report comes near it.
    if isinstance(value, float | int) and not -LARGEST < value < LARGEST:
        raise _broken(where, name, "finite and below 1e15", value)
    return value


def take_count(data: Any, name: str, where: str, least: int = 0) -> int:
    """Return a whole number of `least` or more."""
    value: int = take(data, name, (int,), where)
    if value < least:
        raise _broken(where, name, f"{least} or more", value)
    return value


def take_number(data: Any, name: str, where: str) -> float | None:
    """Return a finite number, or None for null."""
    value = take(data, name, (float, int, NONE), where)
    return None if value is None else float(value)


def _decision(data: Mapping[str, Any], where: str) -> Decision:
    name = take(data, "reason", (str,), where)
    if name not in REASONS:
        raise _broken(where, "reason", f"one of {', '.join(REASONS)}", repr(name[:40]))
    reason = REASONS[name]
    scores = take(data, "frame_scores", (list,), where)
    return Decision(
        accepted=take(data, "accepted", (bool,), where),
        reason=reason,
        score=take_number(data, "score", where),
        threshold=_threshold(take_number(data, "threshold", where), reason),
        reference=take_number({"reference": None, **data}, "reference", where),
        frame_scores=tuple(_frame_score(score, where) for score in scores),
    )


def _frame_score(written: Any, where: str) -> float:
    score = _of_kind(written, "a frame score", (float, int, NONE), where)
    return math.nan if score is None else float(score)


def _threshold(written: float | None, reason: Reason) -> float | None:
    """A null threshold that decided a block was infinite: one that every score reaches, or none."""
    if written is None and reason is Reason.REACHED:
        return -math.inf
    if written is None and reason is Reason.FELL_SHORT:
        return math.inf
    return written


def _work(data: Mapping[str, Any], model: str, where: str) -> Work | None:
    work, where = take(data, model, (dict, NONE), where), f"{where}, {model}"
    if work is None:
        return None
    counts = {n: take_count(work, n, where) for n in ("denoising_passes", "context_passes", "encodes")}
    return Work(**counts, context_seconds=float(take(work, "context_seconds", (float, int), where)))


def _seconds(data: Mapping[str, Any], where: str) -> Seconds:
    seconds = take(data, "seconds", (dict,), where)
    return Seconds(**{n: float(take(seconds, n, (float, int), f"{where}, seconds")) for n in SECONDS})


def _broken(where: str, name: str, wanted: str, came: object) -> BadInput:
    return BadInput(
        f"{name} in {where} must be {wanted}, but is {came}; use report.json unchanged, as a run wrote it"
    )
