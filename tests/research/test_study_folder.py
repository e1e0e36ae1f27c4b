"""A study's folder: kept whole through kills, and kept apart from other studies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import study_tiny
from study_tiny import PROMPTS, SOME, plan, study

from research.folder import claim_folder, read_rows
from sdvg_core.errors import BadInput

ROWS = len(SOME) * len(PROMPTS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    study(folder, plan())
    return folder


def lines_of(folder: Path) -> int:
    path = folder / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.heavy
def test_a_study_killed_half_way_ends_with_the_rows_of_an_unbroken_one(unbroken, tmp_path):
    """SIGKILL leaves no chance to tidy up. Catches rows that are kept in memory, and rows that are made again."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, study_tiny.__file__, str(tmp_path), "0.3"], env=environment)
    while lines_of(tmp_path) < ROWS // 2:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = (tmp_path / "rows.jsonl").read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert 0 < kept.count(b"\n") < ROWS

    study(tmp_path, plan())
    finished = (tmp_path / "rows.jsonl").read_bytes()
    assert finished.startswith(kept)
    assert finished.count(b"\n") == ROWS
    assert read_rows(tmp_path) == read_rows(unbroken)


def test_a_finished_study_loads_nothing_and_makes_nothing(unbroken):
    before = (unbroken / "rows.jsonl").read_bytes()

    def fail() -> None:
        raise AssertionError("something was made")

    assert study(unbroken, plan(), fail)[1] == []
    assert (unbroken / "rows.jsonl").read_bytes() == before


def test_a_torn_last_line_is_dropped_and_its_row_made_again(unbroken, tmp_path):
    whole = (unbroken / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(whole[: whole.rfind(b"\n", 0, -1) + 40])
    assert len(read_rows(tmp_path)) == ROWS - 1
    study(tmp_path, plan())
    assert read_rows(tmp_path) == read_rows(unbroken)


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"configuration": "a", "prompt": "b", "seed": 1}\nnonsense\n')
    with pytest.raises(BadInput, match=r"line 2 of .*rows\.jsonl.*remove it"):
        read_rows(tmp_path)


def test_a_folder_keeps_to_its_study(tmp_path):
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"a": {"tau": 0.5}})
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"b": {"tau": 1.0}})
    assert set(json.loads((tmp_path / "study.json").read_text())["configurations"]) == {"a", "b"}
    with pytest.raises(BadInput, match=r"whose blocks is 9, not 5; name another folder"):
        claim_folder(tmp_path, {"blocks": 5, "size": (64, 64)}, {})
    with pytest.raises(BadInput, match=r"whose a is .*0\.5.*, not .*0\.6.*; name another folder"):
        claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"a": {"tau": 0.6}})
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(BadInput, match="cannot be read"):
        claim_folder(tmp_path, {}, {})
