"""The quick look: the page's ways on a few prompts, beside the page's own rows and figures."""

from __future__ import annotations

import pytest

from lab.research.looks import ROWS, rows_in
from lab.research.quick import quick_text
from lab.research.study import study
from lab.research.tables import PRINTED, ways
from lab.research.world import held_out_prompts
from sdvg_core.errors import BadInput

MADE = [row for row in rows_in(ROWS / "ways.csv") if row["seed"] == "42" and row["way"] in PRINTED]


def quick(count, off=0.0):
    """The text of the page's own rows, as if they had just been made; the last one is `off` decibels better."""
    names = held_out_prompts(count)
    rows = [
        {
            "configuration": row["way"],
            "prompt": names[int(row["prompt"])],
            "seed": 42,
            "passes": {"all": float(row["cost"])},
            "metrics": {"quality": float(row["quality"])},
        }
        for row in MADE
        if int(row["prompt"]) < count
    ]
    rows[-1]["metrics"]["quality"] += off
    return quick_text(rows, names, {"all": 1.0})


def test_quick_look_shows_the_page_beside():
    """Catches: the page's figures of other prompts or of both seeds called those of these prompts."""
    text = quick(12)
    lines = {
        cells[1].strip(): [cell.strip() for cell in cells[2:]]
        for line in text.splitlines()
        if (cells := line.split("|"))[1:]
    }
    shown = {
        cells[1].strip().split(",")[0]: cells for line in ways(ROWS).splitlines() if (cells := line.split("|"))
    }
    assert {*PRINTED} <= {*lines}
    for way in PRINTED:
        here, same, page, _, page_minus, _, page_cost, _ = lines[way]
        assert here == same
        assert page == shown[way][2].strip()
        assert page_minus == shown[way][4].strip()
        assert page_cost == shown[way][5].strip()
    assert lines["target-only"][0] != lines["target-only"][2]
    assert "by more than 0.000 dB" in text
    assert "100 make them 2.9 times as narrow" in text


def test_quick_look_names_the_difference():
    """Catches: another machine's videos passed off as the page's."""
    assert "by more than 0.250 dB" in quick(12, off=0.25)


def test_few_prompts_have_no_intervals():
    text = quick(9)
    assert "9 prompts are too few for an interval" in text
    assert lines_with(text, "first@2")[0].count("[") == 1


def lines_with(text, way):
    return [line for line in text.splitlines() if line.startswith(f"| {way} ")]


@pytest.mark.parametrize("words", [("--tau", "-1"), ("--blocks", "3"), ("--seeds", "7"), ("--prompt-file", "x")])
def test_quick_look_takes_no_other_ways(words):
    with pytest.raises(BadInput, match=f"prints, which {words[0]} would change; leave out one"):
        study(["--quick", *words])


def test_quick_look_ends_with_the_page():
    with pytest.raises(BadInput, match="give --prompts 100 or fewer"):
        quick_text([], held_out_prompts(101), {})
