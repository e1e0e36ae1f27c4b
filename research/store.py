"""A study's folder: rows that survive a kill at any moment, and the settings they belong to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdvg_core.errors import BadInput
from sdvg_core.files.locks import try_lock
from sdvg_core.files.outputs import staged_outputs
from sdvg_core.files.small_files import parse_json

ROWS, GAINS, JUDGED, STUDY, LOCK = "rows.jsonl", "gains.jsonl", "judged.jsonl", "study.json", ".study.lock"
SUMMARY, TABLE = "summary.json", "table.md"
ROW_KEY = ("configuration", "prompt", "seed")
BLOCK_KEY = ("prompt", "seed", "block")

Record = dict[str, Any]
Key = tuple[Any, ...]


class JsonLines:
    """Records in a file, one JSON object per line, each record once.

    A line is written with its line end last, and is on the disk before `add` returns. So a killed process leaves at
    most one incomplete line, which is cut off when the file is next opened.
    """

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        """Read existing records; `key`: the fields that identify a record. Raises `BadInput` for a damaged file."""
        self._path, self._key = path, tuple(key)
        self.records: dict[Key, Record] = {}
        if path.exists():
            _cut_torn_line(path)
            self.records = read_records(path, key)

    def add(self, record: Record) -> None:
        """Append a record, unless it exists already."""
        if self.key_of(record) in self.records:
            return
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
        self.records[self.key_of(record)] = record

    def key_of(self, record: Mapping[str, Any]) -> Key:
        """Return the values that identify the record."""
        return tuple(record[name] for name in self._key)


def read_records(path: Path, key: Sequence[str]) -> dict[Key, Record]:
    """Return the records of all complete lines by their key, and leave the file as it is.

    Raises `BadInput` for a damaged file.
    """
    records: dict[Key, Record] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = parse_json(line)
            records.setdefault(tuple(record[name] for name in key), record)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"line {number} of {path} is no row of a study and cannot be read "
                f"({type(error).__name__}); remove that line, and the study will compute the row again"
            ) from error
    return records


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs of the study out of its folder. Raises `BadInput` if one is using it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = try_lock(folder / LOCK)
    if lock is None:
        raise BadInput(f"another study is running in {folder}; wait for it, or name another folder")
    with lock:
        yield


def claim_folder(folder: Path, settings: Mapping[str, Any], configurations: Mapping[str, Any]) -> None:
    """Claim the folder for this study, or check that it already belongs to it.

    `settings`: common to all rows, and may never change. `configurations`: by name; more may be added, but a name
    keeps its meaning. Raises `BadInput` if the folder holds another study.
    """
    path, wanted = folder / STUDY, json.loads(json.dumps(settings))
    known: Record = {"settings": wanted, "configurations": {}}
    if path.exists():
        known = _read_study(path)
        _refuse_other(path, known["settings"], wanted)
    meant = json.loads(json.dumps(configurations))
    for name, meaning in meant.items():
        if known["configurations"].get(name, meaning) != meaning:
            raise BadInput(
                f"{name} must mean the same as in the rows in {folder}, but has other settings; "
                "give the study a folder of its own"
            )
    if path.exists() and meant.items() <= known["configurations"].items():
        return
    content = {"settings": wanted, "configurations": {**known["configurations"], **meant}}
    with staged_outputs(folder) as staging:
        staging.path(STUDY).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_study(path: Path) -> Record:
    try:
        known = parse_json(path.read_bytes())
        return {"settings": dict(known["settings"]), "configurations": dict(known["configurations"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"the settings of the study in {path} cannot be read ({type(error).__name__}); "
            "give the study a folder of its own"
        ) from error


def _refuse_other(path: Path, known: Record, wanted: Record) -> None:
    for name in sorted({*known, *wanted}):
        if known.get(name) != wanted.get(name):
            raise BadInput(
                f"{path.parent} holds a study whose {name} is {_short(known.get(name))}, but this one's is "
                f"{_short(wanted.get(name))}; give each study a folder of its own"
            )


def _short(value: Any, limit: int = 160) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
