"""Read dataclasses from JSON values, and write a block's record as JSON values.

The readers follow type hints; a validation library would be one more dependency for one file format. JSON has no
NaN or infinity, so they are written as null; the record's reason tells which they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..engine.records import BlockRecord, Seconds
from ..engine.router import Decision, Reason, evenly_spaced
from ..engine.types import Cost, Span
from ..errors import BadInput

SECONDS = ("draft", "decode", "score", "target", "context")
LARGEST = 10**15
"""Largest number accepted in a report; it fits a float."""
UNCHANGED = "use report.json as a run wrote it"
DEEPEST = 32
NAMES = {"frames": "latent_frames"}
LEAST = {"take": 1, "decodes": 1}
T = TypeVar("T")
type_hints = cache(get_type_hints)
for _kind in (Span, Cost, Seconds, Decision, BlockRecord):
    type_hints(_kind)  # evaluate annotations now, not while an untrusted file is read


def from_values(kind: type[T], data: Any, where: str, **known: Any) -> T:
    """Read a dataclass from JSON values by its type hints; ignore other members of `data`.

    `known`: values of fields that are not read. `where`: the object's name in errors. Whole numbers are counts, so
    none is negative. Raises `BadInput` if a field is missing or of the wrong type.
    """
    shape: Any = kind
    hints = type_hints(shape)
    values = dict(known)
    for field in fields(shape):
        name = NAMES.get(field.name, field.name)
        if field.init and field.name not in known:
            values[field.name] = _read(hints[field.name], read_member(data, name, object, where), name, where)
    return kind(**values)


def _read(hint: Any, value: Any, name: str, where: str) -> Any:
    """Read a field's value from a JSON value, by the field's type."""
    inner = get_args(hint)
    if type(None) in inner:
        return None if value is None else _read(inner[0], value, name, where)
    if get_origin(hint) is tuple:
        return tuple(_read(inner[0], item, name, where) for item in _checked(value, name, list, where))
    if get_origin(hint) is Mapping:
        items = _checked(value, name, dict, where).items()
        return {key: _read(inner[1], item, name, where) for key, item in items}
    if is_dataclass(hint):
        return from_values(hint, _checked(value, name, dict, where), f"{where}, {name}")  # type: ignore[arg-type]
    if hint is Any:
        return plain(value)
    if issubclass(hint, Enum):
        members = {member.name.lower(): member for member in hint}
        if _checked(value, name, str, where) not in members:
            raise _broken(where, name, f"one of {', '.join(members)}", repr(value[:40]))
        return members[value]
    return _checked(value, name, hint, where)


def _checked(value: Any, name: str, kind: Any, where: str) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _broken(where, name, kind.__name__, "null" if value is None else type(value).__name__)
    if kind in (int, float) and not -LARGEST < value < LARGEST:
        raise _broken(where, name, "finite and below 1e15", value)
    if kind is int and value < LEAST.get(name, 0):
        raise _broken(where, name, f"{LEAST.get(name, 0)} or more", value)
    return float(value) if kind is float else value


def read_member(data: Any, name: str, kind: type, where: str) -> Any:
    """Return `data[name]`. Raises `BadInput` unless it is exactly of type `kind`; `object` allows any."""
    if not isinstance(data, Mapping) or name not in data:
        raise BadInput(f"{where} has no field {name}; {UNCHANGED}")
    if kind not in (object, type(data[name])):
        raise _broken(where, name, kind.__name__, type(data[name]).__name__)
    return data[name]


def _broken(where: str, name: str, wanted: str, actual: object) -> BadInput:
    return BadInput(f"{name} in {where} is {actual}, not {wanted}; {UNCHANGED}")


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
        "frame_scores": decision.frame_scores,
        "worst_frame": decision.worst_frame,
        "draft": asdict(record.draft) if record.draft else None,
        "target": asdict(record.target) if record.target else None,
        "handover": record.handover,
        "decodes": record.decodes,
        "reused": record.reused,
        "drift": record.drift,
        "seconds": seconds_to_dict(record.seconds),
    }
    return {name: plain(value) for name, value in values.items()}


def record_from_dict(data: Any, where: str) -> BlockRecord:
    """Return the record written by `record_to_dict`. `where`: its name in errors. Raises `BadInput`."""
    span = from_values(Span, data, where)
    decision = from_values(Decision, data, where)
    if decision.threshold is None and decision.reason in (Reason.REACHED, Reason.FELL_SHORT):
        # A threshold that decided and is null was infinite.
        decision = replace(decision, threshold=-math.inf if decision.reason is Reason.REACHED else math.inf)
    if decision.reason is Reason.NOT_FINITE:
        decision = replace(decision, frame_scores=_with_nan(decision.frame_scores))
    return from_values(BlockRecord, data, where, span=span, decision=decision)


def _with_nan(scores: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Return scores with NaN for null, except for frames that the cascade did not score."""
    first = evenly_spaced(len(scores))
    early = all(score is None for frame, score in enumerate(scores) if frame not in first)
    return tuple(
        math.nan if score is None and (frame in first or not early) else score for frame, score in enumerate(scores)
    )


def seconds_to_dict(seconds: Seconds) -> dict[str, float]:
    """Return seconds by part, and their total."""
    return {**asdict(seconds), "total": seconds.total}


def plain(value: Any, deepest: int = DEEPEST) -> Any:
    """Return `value` as JSON values: tuples as lists, NaN and infinity as None.

    Raises `TypeError` for other types, such as a path, which must not get into a report. Raises `BadInput` if
    values are nested more than `deepest` times.
    """
    if deepest < 0:
        raise BadInput(f"settings are nested more than {DEEPEST} times; {UNCHANGED}")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(inner, deepest - 1) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(inner, deepest - 1) for inner in value]
    raise TypeError(f"a report holds JSON values, but got {type(value).__name__}; give text or a number")
