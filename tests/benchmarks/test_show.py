"""What run_gpu.sh leaves as a page and a chart: from a folder's results to two files, or a refusal."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_parts import SHORT
from PIL import Image
from speed_reading import NOT_MEASURED, rows
from speed_results import EVERY, result

from benchmarks.__main__ import main as sdvg
from benchmarks.show import PAGE, PICTURE, main, read_runs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results with two good runs, and every kind of file that is none."""
    line = json.dumps(result())
    files = {
        "attention.json": json.dumps(result(EVERY)),
        "routes.json": line + "\n",
        "cut.json": line[:900],
        "empty.json": "",
        "check.json": '{"benchmark": "sdvg check"}',
        "list.json": "[1]",
        "deep.json": "[" * 5000,
        "letters.json": "\ufffd{",
        "schema.json": json.dumps(result() | {"schema": 99}),
        "older.json": json.dumps(result() | {"conditions": {}}),
        "nothing.json": json.dumps(result() | {"cases": []}),
        "plan.json": '{"vram_gb": 12.0}\n{"vram_gb": 16.0}\n',
        "commit.txt": "0123abc\n",
        "routes.log": "no result",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder.json").mkdir()
    return tmp_path


def test_files_without_a_result_are_named_and_the_others_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(read_runs(folder)) == ["routes", "attention"]
    said = dict(
        line.removeprefix("show: ").split(".json is left out: ") for line in capsys.readouterr().err.splitlines()
    )
    assert set(said) == {path.stem for path in folder.glob("*.json")} - {"routes", "attention"}
    assert said["empty"].startswith("it is empty")
    assert said["cut"] == said["deep"] == "it is cut short or not JSON; run its step again"
    assert said["plan"] == said["check"] == "it has no times of routes"
    assert said["schema"] == "it has schema 99, and this version reads 2"
    assert said["older"].startswith("another version wrote it (this one fails on KeyError(")
    assert said["nothing"] == "no video was finished"


def test_the_command_writes_page_and_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main([str(folder), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [PAGE, PICTURE]
    page = (out / PAGE).read_text(encoding="utf-8")
    assert "Commit 0123abc." in page
    assert f"({PICTURE})\n\n*Run routes.*" in page
    assert main([str(folder), "--run", "attention"]) == 0
    assert "*Run attention.*" in (folder / PAGE).read_text(encoding="utf-8")
    with Image.open(out / PICTURE) as plain, Image.open(folder / PICTURE) as every:
        assert plain.format == every.format == "PNG"
        assert plain.height < every.height
    assert "speed.md" in capsys.readouterr().out


def test_run_gpu_ends_with_it(folder: Path) -> None:
    """Also where only some steps were asked for, here none there is."""
    command = ["bash", "benchmarks/run_gpu.sh", str(folder), sys.executable, "no step"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (folder / PAGE).is_file()
    assert (folder / PICTURE).is_file()


def test_routes_is_charted_before_fast_and_fast_before_all_others(tmp_path: Path) -> None:
    for name in ("attention", "fast", "routes", "long"):
        (tmp_path / f"{name}.json").write_text(json.dumps(result()), encoding="utf-8")
    assert list(read_runs(tmp_path)) == ["routes", "fast", "attention", "long"]


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_a_folder_without_results_is_refused_in_one_sentence(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / place), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"show: {tmp_path / place} should hold results of benchmarks/run_gpu.sh, but no file ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_there_is_refused_by_naming_those_that_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), "--run", "cut"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "show: --run must be one of routes, attention, but is cut; choose one of them"
    assert not (folder / PAGE).exists()


def test_a_real_tiny_run_becomes_a_page_and_a_picture_that_claim_no_speed(tmp_path: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert sdvg([*SHORT, "--routes", "target-only", "r=1", "--executions", "ours", "--json"]) == 0
        (tmp_path / "tiny.json").write_text(out.getvalue(), encoding="utf-8")
        assert main([str(tmp_path)]) == 0
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert NOT_MEASURED in page.lower()
    assert list(rows(page.split("\n## ")[1])) == [("ours", "target-only"), ("ours", "r=1")]
    assert (tmp_path / PICTURE).is_file()
