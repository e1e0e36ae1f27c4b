"""The picture of a benchmark: bars as long as its numbers, marks at theirs, no speed claimed without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure
from speed_reading import NOT_MEASURED, row_at
from speed_results import EVERY, EXECUTIONS, ON_A_CPU, ROUTES, result

from benchmarks.speed_chart import speed_chart
from benchmarks.speed_table import section


def bars(figure: Figure) -> dict[tuple[str, str], float]:
    """The lengths of all bars, by execution and route."""
    (axes,) = figure.axes
    routes = [label.get_text() for label in axes.get_yticklabels()]
    return {
        (drawn.get_label(), routes[round(bar.get_y() + bar.get_height() / 2)]): bar.get_width()
        for drawn in axes.containers
        for bar in drawn
    }


def words(figure: Figure) -> list[str]:
    """Everything that is written in the plot and above it."""
    (axes,) = figure.axes
    return [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]


def marks(figure: Figure) -> dict[str, list[float]]:
    """Where the marks of each kind are."""
    (axes,) = figure.axes
    return {lines.get_label(): [x for ((x, _), _) in lines.get_segments()] for lines in axes.collections}


def test_every_ratio_has_a_bar_of_its_length_and_stands_beside_it() -> None:
    made = result(EVERY)
    ratios = {
        (case["execution"], case["route"]): case["ratio_to_target_only"]
        for case in made["cases"]
        if case["route"] != "target-only"
    }
    figure = speed_chart(made)
    assert bars(figure) == pytest.approx(ratios)
    assert set(ratios) == {(execution, route) for execution in EXECUTIONS for route in ROUTES[1:]}
    assert sorted(words(figure)[1:]) == sorted(f"{ratio:.2f}x" for ratio in ratios.values())


def test_what_has_no_ratio_has_a_dash_in_its_place() -> None:
    figure = speed_chart(result({("ours", "r=1"): 48.0}))
    assert bars(figure) == {("ours", "r=1"): 0}
    assert words(figure)[1:] == ["-"]


def test_marks_lie_at_their_numbers() -> None:
    """Catches a limit drawn for the published figure."""
    figure = speed_chart(result({("ours", "target-only"): 1.0, ("ours", "r=1"): 1.0, ("ours", "draft-only"): 1.0}))
    assert marks(figure) == {"published, not measured here": [1.7], "limit, if drafts took no time": [4.5]}


def test_the_conditions_stand_above_and_an_interruption_is_told() -> None:
    title = words(speed_chart(result(interrupted=True)))[0]
    assert title.endswith("bfloat16, one round")
    assert "Interrupted: some videos were not made." in title
    assert "Interrupted" not in words(speed_chart(result()))[0]


def test_the_chart_grows_with_its_bars() -> None:
    few, many = (speed_chart(result(seconds)) for seconds in ({("ours", "r=1"): 1.0}, EVERY))
    assert many.get_figheight() > few.get_figheight()


@pytest.mark.parametrize("changes", [{"scale": "tiny"}, ON_A_CPU, {"scale": "tiny", **ON_A_CPU}])
def test_tiny_models_and_cpus_are_said_to_measure_no_speed_in_page_and_picture(changes: dict[str, Any]) -> None:
    weak = result(**changes)
    assert NOT_MEASURED in section("tiny", weak).lower()
    figure = speed_chart(weak)
    assert NOT_MEASURED in words(figure)[0].lower()
    assert row_at(9, **changes)["must reach"] == row_at(9, **changes)["published"] == "-"
    assert not any("published" in label for label in marks(figure))


def test_a_full_run_on_a_gpu_has_no_such_mark() -> None:
    assert NOT_MEASURED not in (section("routes", result()) + words(speed_chart(result()))[0]).lower()
