"""The command: a small study of the embedded set from end to end, and what is refused before any work is done."""

import csv
import json
from pathlib import Path

import pytest

from research import folder as work
from research.__main__ import main
from research.folder import held

SMALL = ["--prompts", "2", "--blocks", "2", "--schedule", "1000,625", "--workers", "1"]
SOME = ["--configurations", "target-only", "draft-only", "anchor-only", "reward-min@*", "--tau", "-1", "0.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("study") / "out"
    assert main(["--output", str(output), *SMALL, *SOME]) == 0
    return output


def refused(capsys, *arguments: str) -> str:
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sdvg: ")
    assert "; " in error
    assert "Traceback" not in error
    return error


@pytest.mark.heavy
def test_a_study_writes_rows_summary_table_and_plots(folder):
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"rows.jsonl", "study.json", "summary.json", "table.md"} <= names
    assert {"quality_against_cost.png", "gain_over_first.png"} & names
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 5
    with (folder / "rows.csv").open(newline="") as file:
        lines = {(line["configuration"], line["prompt"]): line for line in csv.DictReader(file)}
    for row in rows:
        line = lines.pop((row["configuration"], row["prompt"]))
        assert (line["route"], line["seed"]) == (row["route"], str(row["seed"]))
        assert float(line["quality"]) == pytest.approx(row["metrics"]["quality"], abs=0.001)
    assert not lines
    target = next(row for row in rows if row["configuration"] == "target-only")
    assert (target["route"], target["target_calls"], target["draft_calls"]) == ("Ft", 2, 0)
    assert set(target["metrics"]) >= {"quality", "worst_block_quality", "seam_change", "reward_mean"}


@pytest.mark.heavy
def test_a_second_call_makes_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(work, "open_worker", None)
    before = (folder / "rows.jsonl").read_bytes()
    assert main(["--output", str(folder), *SMALL, *SOME]) == 0
    assert "10 of 10 rows are done" in capsys.readouterr().out
    assert (folder / "rows.jsonl").read_bytes() == before


def test_a_second_study_in_a_folder_where_one_is_at_work_is_refused(tmp_path, capsys):
    """Catches rows of two calls written into one file at once."""
    with held(tmp_path):
        error = refused(capsys, "--output", str(tmp_path), *SMALL, *SOME)
    assert "another study is running in" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "0"], "--prompts is 0; give 1 or more"),
        (["--width", "40"], "width 40 is no multiple of 16"),
        (["--device", "meta"], "there is no device 'meta'; use cpu"),
        (["--configurations", "rewards"], "called 'rewards'; choose among"),
        (["--external", "score.py"], "--external lacks {video}"),
        (["--models", "nowhere"], "none was given or found in nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, message, tmp_path, capsys):
    assert message in refused(capsys, "--output", str(tmp_path / "out"), *arguments)


def test_a_prompt_outside_the_world_is_refused_with_its_grammar(tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a whale sings\n")
    error = refused(capsys, "--output", str(tmp_path / "out"), "--prompt-file", str(prompts))
    assert "'a whale sings' is outside the grammar" in error
    assert "PROMPT    =" in error
