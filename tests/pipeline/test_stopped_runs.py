"""Runs of `generate` that were stopped, by Ctrl-C or worse: what they keep, and what re-uses or resumes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_runs import names, options, report
from reuse_folders import (
    OUTPUTS,
    ROUTE,
    SMALL,
    Made,
    after_block,
    counted_passes,
    ctrl_c,
    made,
    reused,
    same,
    stopped,
    twice,
)
from safetensors import safe_open
from torch import Tensor

from sdvg_core.checkpoints.model_files import ModelFiles
from sdvg_core.cli import main
from sdvg_core.files.outputs import unfinished_in
from sdvg_core.scorers.image_reward import ImageRewardScorer


@pytest.mark.parametrize(
    "more",
    [pytest.param([], marks=pytest.mark.heavy), ["--tau", "9"]],
    ids=["the same request", "another tau"],
)
def test_a_run_that_was_killed_can_be_re_used(base: list[str], tmp_path: Path, more: list[str]) -> None:
    stopped(tmp_path / "killed", base, 3)
    again = made(tmp_path / "again", [*base, *more, "--reuse", str(tmp_path / "killed")])
    same(again, made(tmp_path / "nothing", [*base, *more]))
    assert reused(again) == (2 if more else 3)
    assert len(unfinished_in(tmp_path / "killed")) == 1, "it can still be resumed"


@pytest.mark.parametrize("more", [[], pytest.param(["--overlap"], marks=pytest.mark.heavy)], ids=["", "overlap"])
def test_ctrl_c_once_finishes_the_block_and_the_video_up_to_there(
    base: list[str],
    earlier: tuple[Path, Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    base = [*base, *more]
    usual = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "out"
    stopped(folder, base, 2, ctrl_c)
    assert signal.getsignal(signal.SIGINT) is usual
    lines = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("block ")]
    assert lines == [
        "sdvg: stops after this block and keeps the video; Ctrl-C again stops at once",
        "sdvg: stopped as asked; the same command makes the rest",
    ]
    short = report(folder)
    assert short["notes"][0] == "Stopped after block 2 of 3, as asked."
    assert [block["author"] for block in short["blocks"]] == ROUTE[:2]
    assert (names(folder), unfinished_in(folder)) == (OUTPUTS, ())
    with counted_passes() as passes:
        rest = made(folder, base)
    assert f"sdvg: this goes on with what an earlier call left in {folder}\n" in capsys.readouterr().err
    same(rest, earlier[1])
    assert reused(rest) == 2
    assert passes or more, "with overlap, block 3 had been begun ahead"
    assert not any("Stopped" in note for note in rest[2]["notes"])
    assert names(folder) == OUTPUTS


def test_ctrl_c_twice_stops_at_once_and_the_run_can_be_resumed(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    stopped(folder, base, 2, twice)
    error = capsys.readouterr().err
    assert f"kept 2 of 3 blocks of {folder}; the same command continues from there" in error
    assert "sdvg: interrupted; no half-written file is left" in error
    assert len(unfinished_in(folder)) == 1
    assert not (folder / "video.mp4").exists()
    rest = made(folder, base)
    same(rest, earlier[1])
    assert (names(folder), reused(rest)) == (OUTPUTS, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ctrl_c_in_a_terminal_is_heard_by_a_whole_process(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path, times: int
) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "sdvg_core", *base, "--blocks", "400", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("block 2/"):
                process.send_signal(signal.SIGINT)
            if "stops after this block" in line and times == 2:
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    made_blocks = len(report(tmp_path / "out")["blocks"]) if times == 1 else 0
    assert ((tmp_path / "out" / "video.mp4").exists(), 2 <= made_blocks < 400) == (times == 1, times == 1)
    assert len(unfinished_in(tmp_path / "out")) == times - 1


def test_a_video_that_was_stopped_is_not_taken_for_the_whole_one(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    stopped(tmp_path / "out", base, 2, ctrl_c)
    rest = made(tmp_path / "out", [*base, "--resume"])
    same(rest, earlier[1])
    assert reused(rest) == 2


def test_ctrl_c_during_the_last_block_leaves_nothing_to_make(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with after_block(2, ctrl_c):
        code = main([*base, "--blocks", "2", "--output", str(tmp_path / "out")])
    assert (code, "makes the rest" in capsys.readouterr().err) == (0, False)


@pytest.mark.heavy
def test_a_list_of_prompts_that_was_stopped_goes_on_as_it_was_told(files: ModelFiles, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a ball\na cube\na star\n", encoding="utf-8")
    folder = tmp_path / "out"
    prompts = ["--prompt-file", str(tmp_path / "prompts.txt"), "--output", str(folder)]
    arguments = [*options(files), *SMALL, "--blocks", "2", *prompts]
    with after_block(3, ctrl_c):
        assert main(arguments) == 130
    assert names(folder) == ["0001", "0002", "videos.csv", "videos.jsonl"]
    assert main(arguments) == 0
    assert [len(report(folder / number)["blocks"]) for number in ("0001", "0002", "0003")] == [2, 2, 2]


@pytest.mark.heavy
def test_a_repaired_run_on_an_earlier_one_without_repair_can_be_resumed(base: list[str], tmp_path: Path) -> None:
    two = [*base, "--schedule", "1000,625"]
    repaired = [*two, "--handover", "1"]
    made(tmp_path / "plain", two)
    stopped(tmp_path / "out", [*repaired, "--reuse", str(tmp_path / "plain")], 3)
    assert main([*repaired, "--output", str(tmp_path / "out"), "--resume"]) == 0


@pytest.mark.heavy
def test_a_run_with_a_score_that_is_no_number_can_be_resumed(base: list[str], tmp_path: Path) -> None:
    honest, calls = ImageRewardScorer.score, 0

    def score(self: ImageRewardScorer, frames: Tensor, prompt: str) -> Tensor:
        nonlocal calls
        calls += 1
        return honest(self, frames, prompt) * (float("nan") if calls == 1 else 1.0)

    with patch.object(ImageRewardScorer, "score", score):
        stopped(tmp_path / "out", base, 3)
        assert report_of_block(tmp_path / "out", 1)["reason"] == "not_finite"
        calls = 0
        assert main([*base, "--output", str(tmp_path / "out"), "--resume"]) == 0


def report_of_block(folder: Path, number: int) -> dict[str, Any]:
    (work,) = unfinished_in(folder)
    with safe_open(work / "journal" / f"{number:06d}.safetensors", "pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["sdvg"])["record"]
    return found


@pytest.mark.heavy
def test_the_note_on_re_used_blocks_names_those_that_were(
    base: list[str], earlier: tuple[Path, Made], tmp_path: Path
) -> None:
    stopped(tmp_path / "out", base, 1)
    rest = made(tmp_path / "out", [*base, "--resume", "--reuse", str(earlier[0])])
    same(rest, earlier[1])
    assert [block["reused"] for block in rest[2]["blocks"]] == [False, True, True]
    assert "Blocks 2 to 3 were made by an earlier run" in rest[2]["notes"][0]
