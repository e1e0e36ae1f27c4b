"""A study's folder as a page: tables of its rows and configurations, with whatever a stranger put there."""

from __future__ import annotations

import json

import pytest
from page_folders import EVIL, Seen, some_row, some_summary, write_study

from sdvg_core.page.document import make_page
from sdvg_core.page.table import figure, number


def test_rows_and_configurations_are_tables_and_plots_are_inside(tmp_path):
    page = make_page(write_study(tmp_path))
    assert (page.videos, page.rows) == (0, 4)
    seen = Seen(page.html)
    assert len(seen.all("table", "sortable")) == 2
    assert [image["src"][:22] for image in seen.all("img")] == ["data:image/png;base64,"]
    cells = seen.texts["td"]
    assert cells[:2] == ["target-only", "0.50 [0.25, 0.75]"]
    assert cells[-12:] == ["draft-only", "a red fox", "2", *"Fara", "-1.25", "50 %", "-", "12.50", "-0.50"]


def test_a_page_of_a_running_study_leaves_its_unfinished_line_alone(tmp_path):
    """Catches reading rows as the study itself does, which cuts off what it finds half written."""
    write_study(tmp_path)
    (tmp_path / "summary.json").unlink()
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(rows.read_bytes() + b'{"configuration": "half')
    before = rows.read_bytes()
    page = make_page(tmp_path)
    assert rows.read_bytes() == before
    assert page.rows == 4
    assert "There is no summary.json yet" in page.html


ODD_ROWS = {
    "wrong types": {"route": 5, "accepted": "no", "worst_scores": {}, "metrics": [], "seconds": 1, "prompt": 5},
    "huge numbers": {"worst_scores": [10**400], "seconds": {"total": 10**400}, "metrics": {"quality": 1e308}},
    "nothing at all": dict.fromkeys(("route", "accepted", "worst_scores", "metrics", "seconds")),
    "html": {"prompt": EVIL, "configuration": EVIL, "route": EVIL, "metrics": {EVIL: 1.0}},
    "a long route": {"route": "a" * 100_000, "accepted": []},
}


@pytest.mark.parametrize("odd", ODD_ROWS.values(), ids=ODD_ROWS.keys())
def test_strange_rows_are_shown_for_what_they_are(tmp_path, odd):
    page = make_page(write_study(tmp_path, [some_row("draft-only", 1, 2.0), some_row("first@2", 1, 2.0) | odd]))
    assert page.rows == 2
    assert len(page.html) < 100_000
    seen = Seen(page.html)
    assert len(seen.all("script")) == 1
    assert not [name for _, attributes in seen.elements for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("line", ["[]", "not json", '{"configuration": []}', "[" * 10_000, "1"])
def test_a_damaged_row_is_a_sentence_on_the_page(tmp_path, line):
    write_study(tmp_path)
    (tmp_path / "rows.jsonl").write_text(line + "\n", encoding="utf-8")
    page = make_page(tmp_path)
    assert page.rows == 0
    assert "line 1 of rows.jsonl is no row of a study" in page.html
    assert str(tmp_path) not in page.html


@pytest.mark.parametrize(
    "summary", [[], {"configurations": 3}, {"quality": {"metric": []}, "configurations": [{"name": 1}]}, "text"]
)
def test_a_damaged_summary_is_a_sentence_on_the_page(tmp_path, summary):
    page = make_page(write_study(tmp_path, summary=summary or [0]))
    assert "summary.json cannot be read" in page.html
    assert page.rows == 4


def test_a_summary_or_plot_that_leads_outside_is_not_read(tmp_path):
    outside = write_study(tmp_path / "outside", summary=some_summary() | {"quality": {"metric": "x"}})
    top = write_study(tmp_path / "top")
    for name in ("summary.json", "gate.png"):
        (top / name).unlink()
        (top / name).symlink_to(outside / name)
    seen = Seen(make_page(top).html)
    assert len(seen.all("table")) == 1
    assert seen.all("img") == []


def test_a_plot_that_is_no_png_is_a_sentence_on_the_page(tmp_path):
    write_study(tmp_path)
    (tmp_path / "gate.png").write_text("<svg onload=alert(1)>", encoding="utf-8")
    html = make_page(tmp_path).html
    assert "The plot gate.png is no PNG" in html
    assert Seen(html).all("img") == []


def test_only_finite_numbers_count_as_numbers():
    odd = (None, True, "1", [], {}, float("nan"), float("inf"), 10**400)
    assert [number(value) for value in odd] == [None] * len(odd)
    assert figure(json.loads("NaN")).shown == figure({"value": "x"}).shown == "-"
    assert figure({"value": 0.5, "low": None, "high": 1}).shown == "0.50"
