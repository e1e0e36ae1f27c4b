"""A study: its folder survives kills, its configurations share blocks and change no row, and its command."""

import csv
import json
import os
import time
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from study_tiny import EVERYTHING, PROMPTS, SOME, job, plan, study, tiny_models

from lab.research import folder as work
from lab.research.__main__ import main
from lab.research.folder import claim_folder, held, read_study
from lab.research.memo import Memo
from lab.research.protocol import Configuration
from lab.research.videos import rows_of
from sdvg_core.errors import BadInput
from sdvg_core.settings.route import Refine, Route, TargetOnly
from tests.support.forked import fork, fork_workers
from tests.support.routers import planned_route

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
def test_killed_study_resumes_to_the_same_rows(unbroken, tmp_path):
    """SIGKILL leaves no chance to tidy up. Catches rows that are kept in memory, and rows that are made again."""
    process = fork(lambda: study(tmp_path, plan(), partial(tiny_models, seconds=0.3)), os.devnull, os.devnull)
    while lines_of(tmp_path) < ROWS // 2:
        assert process.is_alive(), "the study ended before the kill"
        time.sleep(0.01)
    process.kill()
    process.join()
    written = (tmp_path / "rows.jsonl").read_bytes()
    kept = written[: written.rfind(b"\n") + 1]
    assert 0 < kept.count(b"\n") < ROWS

    study(tmp_path, plan())
    finished = (tmp_path / "rows.jsonl").read_bytes()
    assert finished.startswith(kept)
    assert finished.count(b"\n") == ROWS
    assert read_study(tmp_path) == read_study(unbroken)


def test_finished_study_makes_nothing(unbroken):
    before = (unbroken / "rows.jsonl").read_bytes()

    def fail() -> None:
        raise AssertionError("something was made")

    _, progress = study(unbroken, plan(), fail)
    assert progress == []
    assert (unbroken / "rows.jsonl").read_bytes() == before


def test_row_of_no_study_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"configuration": "a", "prompt": "b", "seed": 1}\n{"prompt": "b"}\n')
    with pytest.raises(BadInput, match=r"line 2 of .*rows\.jsonl is no row of a study"):
        read_study(tmp_path)


def test_folder_gathers_configurations(tmp_path):
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"a": {"tau": 0.5}})
    claim_folder(tmp_path, {"blocks": 9, "size": (64, 64)}, {"b": {"tau": 1.0}})
    assert set(json.loads((tmp_path / "study.json").read_text())["configurations"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("settings", "configurations", "fault"),
    [
        ({"blocks": 5}, {}, "whose blocks is 9, not 5"),
        ({"blocks": 9}, {"a": {"tau": 0.6}}, r"whose a is .*0\.5.*, not .*0\.6"),
    ],
)
def test_folder_of_another_study_is_refused(tmp_path, settings, configurations, fault):
    claim_folder(tmp_path, {"blocks": 9}, {"a": {"tau": 0.5}})
    with pytest.raises(BadInput, match=fault):
        claim_folder(tmp_path, settings, configurations)


def test_damaged_settings_of_a_study_are_refused(tmp_path):
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(BadInput, match="cannot be read"):
        claim_folder(tmp_path, {}, {})


@pytest.mark.heavy
@pytest.mark.parametrize("policy", ["recompute", pytest.param("incremental", marks=pytest.mark.exhaustive)])
def test_shared_blocks_change_no_row(policy):
    """Catches a key that leaves out the history, the decoder's state, or what a repair was given."""
    shared = list(rows_of(tiny_models(policy), job()))
    alone = []
    for configuration in EVERYTHING:
        alone += rows_of(tiny_models(policy, memo_bytes=0), job([configuration]))
    if policy == "incremental":  # whose context passes are those of the row that made a block
        for row in (*shared, *alone):
            del row["passes"]["drafter_context"], row["passes"]["target_context"]
    assert shared == alone
    assert len({row["latents_sha256"] for row in shared}) > len(shared) // 3


def test_refined_block_is_no_whole_one():
    """Catches: a memo that leaves out the draft that a block begins from."""
    ways = [Configuration("whole", "", Route(TargetOnly())), Configuration("refined", "", Route(Refine("strong")))]
    shared = list(rows_of(tiny_models(), job(ways)))
    alone = [row for way in ways for row in rows_of(tiny_models(memo_bytes=0), job([way]))]
    assert shared == alone
    assert shared[0]["latents_sha256"] != shared[1]["latents_sha256"]


def test_blocks_that_routes_share_are_made_once(monkeypatch):
    """Catches: a memo that never hits; the rows would be the same, and take twice as long."""
    models = tiny_models()
    plans = ["t" + "".join(rest) for rest in product("td", repeat=4)]
    every_route = [Configuration(plan, "", planned_route(plan)) for plan in plans]
    calls = []
    honest = models.engine.target.generate

    def counted(call):
        calls.append(call.span.index)
        return honest(call)

    monkeypatch.setattr(models.engine.target, "generate", counted)
    list(rows_of(models, job(every_route)))
    assert Counter(calls) == {0: 1, 1: 1, 2: 2, 3: 4, 4: 8}


def test_memo_keeps_its_arguments_alive():
    """Catches a memo of bare ids: a new tensor may lie where a freed one lay, and be taken for it."""
    memo = Memo()
    for i in range(200):
        value = torch.full((1,), float(i))
        assert float(memo.call("same", (value,), value.clone)) == i


SMALL = ["--prompts", "2", "--blocks", "2", "--schedule", "1000,625", "--workers", "1"]
CHOSEN = ["--configurations", "target-only", "draft-only", "anchor-only", "reward-min@*", "--tau", "-1", "0.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        fork_workers(monkeypatch)
        assert main(["--output", str(output), *SMALL, *CHOSEN]) == 0
    return output


def refused(capsys, *arguments: str) -> str:
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sdvg: ")
    assert "; " in error
    assert "Traceback" not in error
    return error


@pytest.mark.heavy
def test_study_writes_rows_summary_table_and_plots(folder):
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
    assert (target["route"], target["target_calls"], target["draft_calls"]) == ("tt", 2, 0)
    assert set(target["metrics"]) >= {"quality", "worst_block_quality", "seam_change", "reward_mean"}


@pytest.mark.heavy
def test_repeated_command_makes_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(work, "open_worker", None)
    before = (folder / "rows.jsonl").read_bytes()
    assert main(["--output", str(folder), *SMALL, *CHOSEN]) == 0
    assert "10 of 10 rows are done" in capsys.readouterr().out
    assert (folder / "rows.jsonl").read_bytes() == before


def test_folder_of_a_running_study_is_refused(tmp_path, capsys):
    """Catches rows of two calls written into one file at once."""
    with held(tmp_path):
        error = refused(capsys, "--output", str(tmp_path), *SMALL, *CHOSEN)
    assert "another study is running in" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "0"], "--prompts is 0"),
        (["--width", "40"], "width 40 is no multiple of 16"),
        (["--device", "meta"], "there is no device 'meta'"),
        (["--configurations", "rewards"], "called 'rewards'"),
        (["--external", "score.py"], "--external lacks {video}"),
        (["--models", "nowhere"], "none was given or found in nowhere"),
    ],
)
def test_impossible_option_is_refused(arguments, message, tmp_path, capsys):
    assert message in refused(capsys, "--output", str(tmp_path / "out"), *arguments)


def test_prompt_outside_the_world_is_refused(tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a whale sings\n")
    error = refused(capsys, "--output", str(tmp_path / "out"), "--prompt-file", str(prompts))
    assert "'a whale sings' is not of the small world" in error
    assert "PROMPT    =" in error
