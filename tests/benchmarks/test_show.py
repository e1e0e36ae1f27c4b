"""What run_gpu.sh leaves as a page: from a folder's results to a file, or a refusal."""

import json
from pathlib import Path

import pytest
from speed_results import PLAIN, result, rows

from benchmarks.results import PAGE, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Results with two good runs, and every kind of file that is none."""
    line = json.dumps(result())
    files = {
        "attention.json": json.dumps(result(PLAIN)),
        "routes.json": line + "\n",
        "cut.json": line[:900],
        "check.json": '{"benchmark": "sdvg check"}',
        "deep.json": "[" * 5000,
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


def test_files_without_a_result_are_named_and_the_others_shown(folder, capsys):
    assert main([str(folder)]) == 0
    said = dict(
        line.removeprefix("sdvg: ").split(".json is left out: ") for line in capsys.readouterr().err.splitlines()
    )
    assert set(said) == {path.stem for path in folder.glob("*.json")} - {"routes", "attention"}
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert "Commit 0123abc." in page
    _, routes, attention = page.split("\n## ")
    assert (routes.split()[0], attention.split()[0]) == ("routes", "attention")
    assert rows(routes)["ours", "anchor-only"]["x target-only"] == "3.20x"


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_a_folder_without_results_is_refused_in_one_sentence(place, tmp_path, capsys):
    assert main([str(tmp_path / place)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sdvg: no file in {tmp_path / place} has times of a finished video; ")
    assert list(tmp_path.iterdir()) == []
