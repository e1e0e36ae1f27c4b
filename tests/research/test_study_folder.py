"""A study's folder: kept whole through kills, and kept apart from other studies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import study_tiny
from study_tiny import PROMPTS, SOME, lasting, open_tiny_bench, plan, refuse_to_open, rows_of, study, unit

from research.run import Notebook, fill
from research.store import ROW_KEY, JsonLines, claim_folder
from research.unit import run_unit
from research.worker import Found, StudyWorker
from sdvg_core.errors import BadInput
from sdvg_core.workers.news import Finished, Heard
from sdvg_core.workers.processes import work_here

ROWS = len(SOME) * len(PROMPTS)


def contents(folder: Path) -> dict:
    notebook = Notebook(folder)
    return {key: lasting(row) for key, row in {**notebook.rows.records, **notebook.gains.records}.items()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    study(folder, plan())
    return folder


# --- kills


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, study_tiny.__file__, str(folder), "0.1"]
    return subprocess.Popen(command, env=environment)


def lines_of(folder: Path) -> int:
    path = folder / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_study_killed_half_way_ends_with_the_rows_of_an_unbroken_one(unbroken, tmp_path):
    """SIGKILL leaves no chance to tidy up. Catches rows that are kept in memory, and rows that are made again."""
    process = start(tmp_path)
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
    assert contents(tmp_path) == contents(unbroken)


def test_a_finished_study_loads_nothing_and_makes_nothing(unbroken):
    before = (unbroken / "rows.jsonl").read_bytes()

    def fail(*_: object) -> None:
        raise AssertionError("something was made")

    fill(Notebook(unbroken), plan(), fail, fail, fail)
    assert (unbroken / "rows.jsonl").read_bytes() == before


def test_a_row_may_hold_any_letter(tmp_path):
    row = {"configuration": "a", "prompt": "a line\u2028a paragraph\u2029a next line\x85the end", "seed": 1}
    JsonLines(tmp_path / "rows.jsonl", ROW_KEY).add(row)
    assert list(JsonLines(tmp_path / "rows.jsonl", ROW_KEY).records.values()) == [row]


def test_a_torn_last_line_is_dropped_and_its_row_made_again(unbroken, tmp_path):
    whole = (unbroken / "rows.jsonl").read_bytes()
    torn = whole[: whole.rfind(b"\n", 0, -1) + 40]
    (tmp_path / "rows.jsonl").write_bytes(torn)
    (tmp_path / "gains.jsonl").write_bytes((unbroken / "gains.jsonl").read_bytes())
    assert len(JsonLines(tmp_path / "rows.jsonl", ROW_KEY).records) == ROWS - 1
    study(tmp_path, plan())
    assert contents(tmp_path) == contents(unbroken)


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"configuration": "a", "prompt": "b", "seed": 1}\nnonsense\n')
    with pytest.raises(BadInput, match=r"line 2 of .*rows\.jsonl.*remove that line"):
        JsonLines(tmp_path / "rows.jsonl", ROW_KEY)


def test_gains_that_lack_a_block_are_completed_without_doubles(unbroken, tmp_path):
    for name in ("rows.jsonl", "gains.jsonl"):
        (tmp_path / name).write_bytes((unbroken / name).read_bytes())
    path = tmp_path / "gains.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    study(tmp_path, plan())
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)


# --- workers


def test_two_workers_give_the_rows_of_one(unbroken, tmp_path):
    said = list(study(tmp_path, plan(), workers=2))
    assert contents(tmp_path) == contents(unbroken)
    assert [line.split()[0] for line in said] == ["1/2", "2/2"]
    assert "left" in said[0]
    here = [lasting(row) for row in rows_of(open_tiny_bench(), unit(SOME))]
    there = [
        row for key, row in contents(tmp_path).items() if key[0] in {c.name for c in SOME} and key[1] == PROMPTS[0]
    ]
    assert {row["configuration"]: row for row in here} == {row["configuration"]: row for row in there}


def test_what_a_worker_refuses_is_refused(tmp_path):
    with pytest.raises(BadInput, match="expected a bench, but there is none"):
        list(work_here([unit(SOME)], [partial(StudyWorker, refuse_to_open)]))


def test_a_unit_that_a_worker_dies_of_is_tried_again_and_told_of(tmp_path):
    said: list[str] = []
    work = partial(work_here, openers=[partial(StudyWorker, study_tiny.open_doomed_bench)], tries=2)
    told = r"no worker finished 'a red ball', seed \d+: a worker ended with code 7; all rows so far are kept"
    with pytest.raises(BadInput, match=told):
        fill(Notebook(tmp_path), plan(SOME[:1], PROMPTS[:1]), study_tiny.embeddings, work, said.append)
    assert "it is tried once more" in said[0]


# --- one study a folder


def test_a_folder_keeps_to_its_study(tmp_path):
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"a": {"tau": 0.5}})
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"b": {"tau": 1.0}})
    assert set(json.loads((tmp_path / "study.json").read_text())["configurations"]) == {"a", "b"}
    with pytest.raises(BadInput, match=r"whose blocks is 9, but this one's is 5; give each study a folder"):
        claim_folder(tmp_path, {"blocks": 5, "size": (64, 64)}, {})
    with pytest.raises(BadInput, match=r"a must mean the same as in the rows in .* but has other settings; give"):
        claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"a": {"tau": 0.6}})


def test_a_folder_whose_study_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(BadInput, match="cannot be read"):
        claim_folder(tmp_path, {}, {})


def test_more_prompts_and_configurations_add_to_what_is_there(tmp_path):
    work = partial(_work_here)
    few = plan(SOME[:2], PROMPTS[:1])
    fill(Notebook(tmp_path), few, study_tiny.embeddings, work, lambda line: None)
    first = (tmp_path / "rows.jsonl").read_bytes()
    fill(Notebook(tmp_path), plan(SOME[:3]), study_tiny.embeddings, work, lambda line: None)
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(first)
    assert len(Notebook(tmp_path).rows_of(plan(SOME[:3]))) == 6
    assert len(Notebook(tmp_path).rows_of(few)) == 2


def _work_here(units):
    bench = open_tiny_bench()
    for one in units:
        for file, record in run_unit(bench, one):
            yield Heard(0, one, Found(file, record))
        yield Finished(0, one)
