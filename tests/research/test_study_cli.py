"""The command: a small study of the embedded set from end to end, and what is refused before any work is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research import folder as work
from research import study
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


def test_a_study_writes_rows_gains_summary_table_and_plots(folder):
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"rows.jsonl", "gains.jsonl", "study.json", "summary.json", "table.md"} <= names
    assert {"quality_against_cost.png", "quality_against_target_calls.png"} <= names
    assert {"scores.png", "gate.png"} <= names
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 5
    target = next(row for row in rows if row["configuration"] == "target-only")
    assert (target["route"], target["target_calls"], target["draft_calls"]) == ("Ft", 2, 0)
    assert set(target["metrics"]) >= {"quality", "worst_block_quality", "seam_error", "seam_change", "reward_mean"}
    assert len((folder / "gains.jsonl").read_text().splitlines()) == 2


def test_a_second_call_makes_nothing_and_prints_json(folder, capsys, monkeypatch):
    monkeypatch.setattr(work, "share_out", None)
    before = (folder / "rows.jsonl").read_bytes()
    assert main(["--output", str(folder), *SMALL, *SOME, "--json", "--no-plots"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["prompts"] == 2
    assert "10 of 10 rows are done" in err
    assert (folder / "rows.jsonl").read_bytes() == before


def test_another_study_in_the_same_folder_is_refused(folder, capsys):
    error = refused(capsys, "--output", str(folder), *SMALL, *SOME, "--blocks", "3")
    assert "whose blocks is 2, not 3" in error


def test_a_second_study_in_a_folder_where_one_is_at_work_is_refused(tmp_path, capsys):
    """Catches rows of two calls written into one file at once."""
    with held(tmp_path):
        error = refused(capsys, "--output", str(tmp_path), *SMALL, *SOME)
    assert "another study is running in" in error


def test_calibration_reads_the_rows_that_are_there(folder, capsys, monkeypatch):
    monkeypatch.setattr(work, "share_out", None)
    taus = ["--tau", "-1", "0.5"]
    arguments = ["--output", str(folder), *SMALL, *taus, "--calibrate", "--speed-up", "1000"]
    assert main(arguments) == 2
    assert "give a speed-up from" in capsys.readouterr().err


def test_an_interruption_is_told_of_and_keeps_rows(tmp_path, capsys, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "fill", interrupt)
    assert main(["--output", str(tmp_path), *SMALL, *SOME, "--no-plots"]) == 130
    assert "0 rows are in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "0"], "--prompts must be at least 1"),
        (["--blocks", "0"], "--blocks must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--width", "40"], "--width must be a multiple of 16, but is 40"),
        (["--height", "-16"], "--height must be a multiple of 16"),
        (["--device", "meta"], "a device is cpu"),
        (["--calibrate"], "add --draft-share 0.8 or --speed-up 1.5"),
        (
            ["--configurations", "rewards"],
            "'rewards' is no configuration's name or pattern; choose among",
        ),
        (["--external", "score.py"], "no argument {video}"),
        (["--models", "nowhere"], "none was given or found in nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, message, tmp_path, capsys):
    assert message in refused(capsys, "--output", str(tmp_path / "out"), "--no-plots", *arguments)


def test_a_prompt_outside_the_world_is_refused_with_its_grammar(tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a whale sings\n")
    error = refused(capsys, "--output", str(tmp_path / "out"), "--no-plots", "--prompt-file", str(prompts))
    assert "'a whale sings' is outside the grammar" in error
    assert "PROMPT    =" in error
