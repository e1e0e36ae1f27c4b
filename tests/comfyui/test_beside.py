"""What ComfyUI's page does beside the strip. What the page needs is said in comfy_page.py."""

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

page = page_of("beside.js", seed=900)


def test_plain_keys_on_buttons_stay_ours(page):
    """Catches: a letter on a button that opens a sidebar, or Delete there, which deletes the selected node."""
    heard = page["keys"]["heard"]
    assert len(heard) == 5
    for button, keys in heard.items():
        assert keys == ["Control", "z", "Tab"], button
    assert page["keys"]["left"] == {"samplers": 1, "sidebar": None}


def test_run_leaves_the_sampler_as_it_was(page):
    """Catches: a node that grows for the text line of a run, which is a step to undo and ends redoing."""
    before, *later = page["ran"]["states"]
    assert page["ran"]["lines"] > 1
    assert before["takes"] == "2:2"
    assert later == [before, before]
    assert page["ran"]["pressed"] == ["", "2:2"]


def test_gap_between_squares_opens_no_menu(page):
    """Catches: a right click a pixel beside a square that opens the node's menu."""
    assert page["gap"] == {"hit": "sdvg-squares", "menus": 0}


def test_next_run_is_not_named_during_takes(page):
    """Catches: *nothing to remake* while takes to compare are being made."""
    before, during, after = page["takes"]
    assert (before, during) == ("next run: nothing to remake", "")
    assert after == before


def test_buttons_below_the_film_are_whole(page):
    """Catches: *Shots* cut off, or out of reach, on a narrow node while a run can be stopped."""
    for width, seen in page["controls"].items():
        assert seen["buttons"] >= 4, width
        assert seen["cut"] == [], width
