"""What run_gpu.sh leaves as a page and a chart: every number in its place, and no speed claimed without a GPU."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_parts import SHORT
from PIL import Image, ImageColor
from speed_results import PLAIN, result

from benchmarks.show import PAGE, PICTURE, main, read_runs
from sdvg_core.bench import speed_chart as chart
from sdvg_core.bench.goals import GOALS
from sdvg_core.bench.speed_table import COLUMNS, section, speed_page
from sdvg_core.canvas import Canvas
from sdvg_core.cli import main as sdvg
from sdvg_core.lettering import text_width

ROOT = Path(__file__).resolve().parents[2]
ON_A_CPU = {"conditions": {**result()["conditions"], "gpu": None}}
ON_TWO_GPUS = {"conditions": {**result()["conditions"], "side_device": "cuda:1", "side_gpu": "Other GPU"}}
NOT_MEASURED = "not a measurement of speed"
EXECUTIONS = ("ours", "compiled", "graphs", "compiled+overlap", "as-published")
ROUTES = ("target-only", "draft-only", "anchor-only", "r=1", "r=2", "r=4", "r=8")
# Seconds of every route in every execution; no two bars are alike.
EVERY = {(e, r): 50 / (1 + 0.3 * i) - 0.4 * j for j, e in enumerate(EXECUTIONS) for i, r in enumerate(ROUTES)}


def rows(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The first table of a section: its cells by column, by execution and route."""
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    end = next(i for i, cells in enumerate(table) if "peak memory of" in cells[0])
    assert tuple(table[0]) == COLUMNS
    return {(cells[0], cells[1]): dict(zip(COLUMNS, cells, strict=True)) for cells in table[2:end]}


def row_at(ratio: float, route: str = "r=1", execution: str = "ours", **changes: Any) -> dict[str, str]:
    """The row of a route that is `ratio` times as fast as target-only."""
    seconds = {(execution, "target-only"): ratio, (execution, route): 1.0}
    return rows(section("run", result(seconds, **changes)))[execution, route]


def test_a_row_shows_what_was_measured_beside_what_is_published_and_wanted() -> None:
    found = rows(section("routes", result()))
    assert list(found) == list(PLAIN)
    assert found["ours", "anchor-only"] == {
        "execution": "ours",
        "route": "anchor-only",
        "x target-only": "3.20x",
        "published": "2.21x",
        "must reach": "3.2x, reached",
        "share of limit": "36 %",
        "s per video": "30.000",
        "s to first frame": "1.000",
        "frames per s": "3.5",
        "peak memory": "41.5 GB",
    }
    assert found["ours", "r=1"]["must reach"] == "2.4x, not reached"
    assert found["ours", "target-only"]["must reach"] == found["ours", "target-only"]["published"] == "-"


@pytest.mark.parametrize("route, wanted", [(name, goal.must_reach) for name, goal in GOALS.items()])
def test_a_goal_is_reached_from_its_very_number_on(route: str, wanted: float | None) -> None:
    """Catches a comparison of rounded numbers, in which 2.398x passes for 2.4x."""
    if wanted is None:
        assert row_at(100, route)["must reach"] == "-"
        return
    assert row_at(wanted, route)["must reach"] == f"{wanted}x, reached"
    assert row_at(wanted - 0.002, route)["must reach"] == f"{wanted}x, not reached"


def test_the_authors_order_of_work_is_not_held_against_our_goals() -> None:
    found = row_at(1.7, execution="as-published")
    assert (found["published"], found["must reach"]) == ("about 1.7x", "-")


@pytest.mark.parametrize("ours, words", [(2.0, "ours 1.50x, reached."), (2.01, "ours 1.49x, not reached.")])
def test_ours_is_held_against_the_authors_order_of_work_in_the_same_run(ours: float, words: str) -> None:
    pair = {("ours", "r=1"): ours, ("as-published", "r=1"): 3.0}
    page = section("routes", result(pair | {("ours", "r=2"): 1.0, ("as-published", "r=2"): 9.0}))
    assert f"As fast as as-published in this run at r=1 (must reach 1.5x): {words}" in page
    assert "Not compared with as-published" in section("routes", result())


def test_without_target_only_there_is_no_ratio() -> None:
    found = rows(section("routes", result({("ours", "r=1"): 48.0})))["ours", "r=1"]
    assert (found["x target-only"], found["share of limit"]) == ("-", "-")
    assert found["must reach"] == "2.4x, not measured"
    assert found["s per video"] == "48.000"


def test_an_interrupted_run_says_what_it_has_fewer_videos_of() -> None:
    whole, cut = result(), result(repeats=2, interrupted=True)
    cut["cases"][0]["repeats"] = 2
    assert "Interrupted" not in section("routes", whole)
    assert "Fewer than 2 videos were made of: ours anchor-only (1), ours r=1 (1)." in section("routes", cut)


def test_every_run_has_a_section_and_ratios_of_its_own() -> None:
    slower = result({("ours", "target-only"): 100.0, ("ours", "r=1"): 50.0})
    page = speed_page({"routes": result(), "fast": slower}, charted="fast", picture="a.png", commit="abc")
    routes, fast = page.split("\n## ")[1:]
    assert (routes.split()[0], fast.split()[0]) == ("routes", "fast")
    assert rows(routes)["ours", "anchor-only"]["x target-only"] == "3.20x"
    assert rows(fast)["ours", "r=1"]["x target-only"] == "2.00x"
    assert "](a.png)\n\n*Run fast.*" in page
    assert "Commit abc." in page


@pytest.mark.parametrize("changes", [{"scale": "tiny"}, ON_A_CPU, {"scale": "tiny", **ON_A_CPU}])
def test_tiny_models_and_cpus_are_said_to_measure_no_speed_in_page_and_picture(
    changes: dict[str, Any], notes: list[Note]
) -> None:
    weak = result(**changes)
    assert NOT_MEASURED in section("tiny", weak).lower()
    chart.speed_chart(weak)
    assert NOT_MEASURED in " ".join(text for text, *_ in notes).lower()
    assert row_at(9, **changes)["must reach"] == row_at(9, **changes)["published"] == "-"
    assert not any("published" in text for text, *_ in notes)


def test_a_full_run_on_a_gpu_has_no_such_mark(notes: list[Note]) -> None:
    chart.speed_chart(result())
    assert NOT_MEASURED not in (section("routes", result()) + str(notes)).lower()


@pytest.mark.parametrize("changes", [{"blocks": 64}, {"width": 480}, ON_TWO_GPUS])
def test_another_clip_or_a_second_device_is_held_against_no_goal(changes: dict[str, Any]) -> None:
    found = row_at(9, **changes)
    assert found["x target-only"] == "9.00x"
    assert found["must reach"] == found["published"] == "-"
    assert "not for this run" in section("long", result(**changes))


@pytest.mark.parametrize(
    "deviation, words",
    [(0.1, "+10.0 %, within 10 %"), (-0.1, "-10.0 %, within 10 %"), (-0.12, "-12.0 %, not within 10 %")],
)
def test_predicted_memory_is_held_against_the_measured(deviation: float, words: str) -> None:
    found = {"bytes": 40_000_000_000, "predicted_bytes": 41_000_000_000, "deviation": deviation}
    page = section("routes", result(memory={"peak": {"score": found}}))
    assert f"| scoring | 41.0 GB | 40.0 GB | {words} |" in page
    found |= {"bytes": None, "deviation": None}
    assert "| scoring | 41.0 GB | not measured | - |" in section("x", result(memory={"peak": {"score": found}}))


def test_the_conditions_stand_below_the_numbers() -> None:
    page = section("routes", result())
    assert "- Device: Imaginary GPU, 80.0 GB, driver and power limit 1.2, 300.00 W, CUDA 12.8, cuDNN 91002" in page
    assert "- Versions: sdvg 0, torch 2." in page
    assert "- Numbers: transformers bfloat16, the target's weights bfloat16, VAE float16" in page
    assert "- ours: schedule four-step, attention sdpa and cudnn, compile off" in page
    assert "threads: 1" in section("routes", result(**ON_A_CPU))
    assert "VAE and scorer" not in page.split("- Versions")[0]
    assert "VAE and scorer on cuda:1, Other GPU." in section("routes", result(**ON_TWO_GPUS))


def bar_ends(image: Image.Image, colour: str) -> list[int]:
    """The last pixel of every bar of a colour, from the axis on, from above."""
    # Smoothing leaves an edge not quite in its colour.
    off = np.asarray(image)[:, chart.LEFT :].astype(int) - ImageColor.getrgb(colour)
    plot = (abs(off) < 40).all(axis=2)
    starts = [y for y in range(1, len(plot)) if plot[y, 2] and not plot[y - 1, 2]]
    return [int(np.flatnonzero(plot[y + chart.BAR // 2]).max()) + 1 for y in starts]


def test_the_bars_are_as_long_as_the_numbers_are_great() -> None:
    seconds = {
        ("ours", "target-only"): 6.0,
        ("ours", "r=2"): 3.0,
        ("ours", "r=1"): 1.5,
        ("ours", "anchor-only"): 1.0,
    }
    image = chart.speed_chart(result(seconds, blocks=8))
    two, four, six = bar_ends(image, chart.COLOURS[0])
    nine_are = (chart.RIGHT - chart.LEFT) / 1.02  # the limit of anchor-only is the greatest number
    assert two == pytest.approx(nine_are * 2 / 9, abs=1)
    assert four == pytest.approx(2 * two, abs=2)
    assert six == pytest.approx(3 * two, abs=2)


def test_marks_lie_at_their_numbers() -> None:
    """Catches a limit drawn for the published figure."""
    image = chart.speed_chart(result({("ours", "target-only"): 1.0, ("ours", "r=1"): 1.0}))
    dark = (np.asarray(image.convert("L"))[:, chart.LEFT + 5 :] < 60).sum(axis=0)
    per_one = (chart.RIGHT - chart.LEFT) / 1.02 / 4.5
    published, limit = (round(value * per_one) - 5 for value in (1.7, 4.5))
    assert dark[published - 1 : published + 2].max() > 50  # a line through
    assert 20 < dark[limit - 1 : limit + 2].max() < 50  # a dashed one


def test_every_case_but_target_only_has_one_bar_and_what_was_not_made_has_none() -> None:
    groups = {group.route: group for group in chart.groups_of(result({**EVERY, ("ours", "bail-out"): 40.0}))}
    assert list(groups) == [*ROUTES[1:], "bail-out"]
    assert all(list(groups[route].ratios) == list(EXECUTIONS) for route in ROUTES[1:])
    assert list(groups["bail-out"].ratios) == ["ours"]
    bare = result({("ours", "r=1"): 48.0})
    assert chart.groups_of(bare)[0].ratios == {"ours": None}
    assert bar_ends(chart.speed_chart(bare), chart.COLOURS[0]) == []


Note = tuple[str, float, float, float, float]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    """The texts of charts drawn from now on: left, top, right and bottom of each."""
    written: list[Note] = []

    class Notebook(Canvas):
        def text(self, x: float, y: float, text: str, size: int, colour: str = "", **look: Any) -> None:
            left = x - look.get("align", 0.5) * text_width(text, size)
            written.append((text, left, y - size / 2, left + text_width(text, size), y + size / 2))
            super().text(x, y, text, size, colour or "#222222", **look)

    monkeypatch.setattr(chart, "Canvas", Notebook)
    return written


MANY = (
    "ours",
    "channels-last",
    "planes",
    "compiled",
    "graphs",
    "overlap",
    "compiled+planes+overlap",
    "as-published",
)


@pytest.mark.parametrize(
    "seconds",
    [
        EVERY,
        PLAIN,
        {("ours", "target-only"): 1.0},
        {(execution, route): 9.0 for execution in MANY for route in ("target-only", "r=8")},
        {(e, r): 1000.0 if r == "target-only" else 1.0 for e, r in EVERY},
    ],
    ids=["many bars", "few", "none", "many executions", "great numbers"],
)
def test_no_text_lies_on_another_or_beyond_the_edge(
    seconds: dict[tuple[str, str], float], notes: list[Note]
) -> None:
    image = chart.speed_chart(result(seconds))
    assert (image.width, image.mode) == (chart.WIDTH, "RGB")
    for i, (text, left, top, right, bottom) in enumerate(notes):
        assert left >= 0, text
        assert top >= 0, text
        assert right <= image.width, text
        assert bottom <= image.height, text
        for other, x0, y0, x1, y1 in notes[:i]:
            assert left >= x1 or right <= x0 or top >= y1 or bottom <= y0, (text, other)
    numbers = [note for note in notes if re.fullmatch(r"\d+\.\d\dx", note[0])]
    assert len(numbers) == sum(route != "target-only" for _, route in seconds)
    assert all(right < chart.LEFT for _, _, _, right, _ in numbers)  # beside the bars


def test_conditions_are_never_cut_and_an_interruption_is_told(notes: list[Note]) -> None:
    conditions = result()["conditions"]
    versions = {
        **conditions["versions"],
        "device": "cuda:0: Imaginary Workstation Edition With A Very Long Name Indeed",
    }
    chart.speed_chart(result(conditions={**conditions, "versions": versions}, interrupted=True))
    assert "bfloat16, one round" in " ".join(text for text, *_ in notes)
    assert "Interrupted: some videos were not made." in [text for text, *_ in notes]
    assert all(right <= chart.WIDTH - chart.MARGIN for _, _, _, right, _ in notes)


def test_the_chart_grows_with_its_bars() -> None:
    one_more = {**EVERY, ("ours", "bail-out"): 40.0}
    grown = chart.speed_chart(result(one_more)).height - chart.speed_chart(result(EVERY)).height
    assert grown == chart.BETWEEN + 3 * chart.LABEL_LINE  # its name, its published figure and its limit


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
    assert said["cut"] == said["deep"] == "it is cut short or no JSON; run its step again"
    assert said["plan"] == said["check"] == "it has no times of routes"
    assert said["schema"] == "it has schema 99, and this version reads 2"
    assert said["older"].startswith("another version wrote it (KeyError(")
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
    for place, run in ((out, PLAIN), (folder, EVERY)):
        with Image.open(place / PICTURE) as image:
            assert image.size == chart.speed_chart(result(run)).size
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
    assert line.startswith("show: expected results of benchmarks/run_gpu.sh in ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_there_is_refused_by_naming_those_that_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), "--run", "cut"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "show: expected --run to be one of routes, attention, but got cut; choose one of them"
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
    with Image.open(tmp_path / PICTURE) as image:
        assert (image.width, image.mode) == (chart.WIDTH, "RGB")
        assert len(bar_ends(image, chart.COLOURS[0])) == 1
