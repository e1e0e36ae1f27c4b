"""Rows of results: what a kill leaves half written, what JSON does not know, and what is damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.rows import add_rows, read_rows
from sdvg_core.errors import BadInput

ROWS = [{"prompt": "a ball", "dB": [1.5, 2.0]}, {"prompt": "ein Würfel", "dB": []}]


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    assert read_rows(path) == []
    add_rows(path, ROWS[:1])
    add_rows(path, ROWS[1:])
    assert read_rows(path) == ROWS


def test_incomplete_line_is_made_again(tmp_path: Path) -> None:
    """Catches: a run that was killed while it wrote, and that counts half a row as made or cannot go on."""
    path = tmp_path / "rows.jsonl"
    add_rows(path, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_rows(path) == ROWS[:1]
    add_rows(path, ROWS[1:])
    assert path.read_bytes() == whole


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    """Catches: a file that other programs cannot read as JSON."""
    path = tmp_path / "rows.jsonl"
    add_rows(path, [{"presence": {"mover": (0.5, math.nan)}}])
    assert read_rows(path) == [{"presence": {"mover": [0.5, None]}}]


def test_infinity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        add_rows(tmp_path / "rows.jsonl", [{"dB": math.inf}])


@pytest.mark.parametrize("line", ["nonsense", "[1, 2]", "5", "[" * 100_000])
def test_damaged_line_is_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"prompt": "a ball"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(BadInput, match=r"line 2 of .*rows\.jsonl"):
        read_rows(path)
