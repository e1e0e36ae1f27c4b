"""Files of prompts: a list or a story as text, or a table, as CSV or JSON lines.

A table read as text would make a video of its header. Its columns are few, so that none is passed over in silence.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput, first_line, why
from ..files.small_files import parse_json, read_small
from ..settings.request import shots_text
from .prompts import PROMPT_LINE, PromptSchedule, read_video_prompt, text_lines

PROMPT = "prompt"
COLUMNS = (PROMPT, "seed", "first")
DELIMITERS = ",;\t"
CSV = (".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,20}")


def read_prompt_list(path: Path) -> tuple[PromptSchedule, ...]:
    """Read a file of prompts; see `read_prompt_file`."""
    return read_prompt_file(path)[0]


def read_prompt_file(path: Path) -> tuple[tuple[PromptSchedule, ...], bool]:
    """Read a file of prompts: one video per line, or per row of a table; and return whether it is such a list.

    Text: if lines name blocks, all are one video's, as in `read_prompt`; empty lines and lines that begin with #
    are skipped; a prompt may begin with the number of first blocks by the target: `[first 5] two boats on a lake`.
    Tables: `.csv`, `.tsv`, or `.jsonl` with an object per line; column `prompt`, and `seed` and `first` if wanted.
    Raises `BadInput` for an unreadable file and for invalid prompts.
    """
    try:
        text = read_small(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"the prompt file {path.name} is not UTF-8 text; save it as UTF-8") from error
    except (OSError, ValueError) as error:
        remedy = "check the path" if isinstance(error, OSError) else "give a text file of prompts, under 16 MB"
        raise BadInput(f"the prompt file {path} cannot be read ({why(error)}); {remedy}") from error
    suffix = path.suffix.lower()
    if suffix in CSV:
        return _of_rows(path, _csv_rows(path, text)), True
    if suffix in JSON_LINES:
        return _of_rows(path, _json_rows(path, text)), True
    return _of_lines(path, text)


def _of_lines(path: Path, text: str) -> tuple[tuple[PromptSchedule, ...], bool]:
    lines = [line.strip() for line in text_lines(text) if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise BadInput(f"the prompt file {path.name} is empty; write one prompt per line")
    if path.suffix.lower() == ".json" or lines[0].startswith(('{"', '[{"')):
        raise BadInput(f"{path.name} is JSON; save it as .jsonl, an object with a prompt on each line")
    if _delimiter(lines[0]):
        raise BadInput(f"{path.name} begins with the columns of a table; name it .csv")
    if not any(map(PROMPT_LINE.fullmatch, lines)):
        return tuple(map(read_video_prompt, lines)), True
    for line in lines[1:]:
        if PROMPT_LINE.fullmatch(line) is None:
            fault = f"{path.name} has lines that name a block, but {line!r:.60} names none"
            raise BadInput(f"{fault}; number all lines for one video, or none for a video each")
    return (read_video_prompt("\n".join(lines)),), False


def _delimiter(header: str) -> str | None:
    """Return what separates the columns of a header with several, of which one is the prompt; else None."""
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"').lower() for name in header.split(delimiter)]
        if PROMPT in names and len(names) > 1:
            return delimiter
    return None


def _csv_rows(path: Path, text: str) -> list[dict[str, Any]]:
    header = next((line for line in text_lines(text) if line.strip()), "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(header) or ",", strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise BadInput(f"{path.name} is no CSV file ({first_line(error)}); save it as CSV again") from error
    names = [name.strip().lower() for name in lines[0]] if lines else []
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{path.name} has the column {twice[0]!r:.40} twice; leave one out")
    for number, line in enumerate(lines[1:], 1):
        if len(line) > len(names):
            fault = f"row {number} of {path.name} has more values than columns"
            raise BadInput(f'{fault}; put a prompt with commas in quotes, as "a sea, calm"')
    return [dict(zip(names, line, strict=False)) for line in lines[1:]]


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise BadInput(f"line {number} of {path.name} is no JSON ({first_line(error)}); correct it") from error
        if not isinstance(row, dict):
            raise BadInput(f"line {number} of {path.name} is no object; write {json.dumps({PROMPT: 'a calm sea'})}")
        rows.append(row)
    return rows


def _of_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> tuple[PromptSchedule, ...]:
    """Return the prompts of a table's rows. Raises `BadInput` for other columns, and names the row of a fault."""
    prompts = []
    for number, row in enumerate(rows, 1):
        if others := [name for name in row if name not in COLUMNS]:
            fault = f"{path.name} has a column {others[0]!r:.40}, and {', '.join(COLUMNS)} are read"
            raise BadInput(f"{fault}; leave it out")
        try:
            prompts.append(_of_row(row))
        except BadInput as refusal:
            raise BadInput(f"row {number} of {path.name}: {refusal}") from refusal
    if not prompts:
        raise BadInput(f"the prompt file {path.name} has no rows; write one for each video, below the columns")
    return tuple(prompts)


def _of_row(row: Mapping[str, Any]) -> PromptSchedule:
    text = row.get(PROMPT)
    if not isinstance(text, str) or not text.strip():
        raise BadInput("the prompt is empty; write one in the column prompt")
    first = _number(row, "first")
    prompt = read_video_prompt(text if first is None else f"[first {first}] {text}")
    if prompt.strengths or prompt.clips or shots_text(prompt.shots):
        fault = "a table has no strengths, shots and clips, which its videos would share"
        raise BadInput(f"{fault}; write one video into a text file, or cut in place of fresh")
    return replace(prompt, seed=_number(row, "seed"))


def _number(row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not WHOLE_NUMBER.fullmatch(str(value).strip()):
        raise BadInput(f"{name} is {value!r:.40}; give a whole number, or nothing")
    return int(value)
