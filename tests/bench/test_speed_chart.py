"""The picture of a benchmark: bars as long as its numbers, no text on another, no speed claimed without a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from speed_reading import NOT_MEASURED, bar_ends, row_at
from speed_results import EVERY, EXECUTIONS, ON_A_CPU, PLAIN, ROUTES, result

from sdvg_core.bench import speed_chart as chart
from sdvg_core.bench.speed_table import section
from sdvg_core.report.canvas import Canvas
from sdvg_core.report.lettering import text_width

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


MANY = (
    "ours",
    "channels-last",
    "planes",
    "compiled",
    "compiled+planes",
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
