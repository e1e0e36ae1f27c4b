"""Locks by shot, in ComfyUI's page. What the page needs is said in comfy_page.py."""

import re

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

page = page_of("locks.js", seed=440)


def locks(seen):
    """Return the text of the locks without their digests."""
    return re.sub(":[0-9a-f]{16}", "", seen["kept"])


def test_card_locks_its_own_shot(page):
    """Catches: a card's lock that takes in all that comes before it; sentences that count a shot's own blocks."""
    assert [card["lock"] for card in page["made"]["cards"]] == [
        ["false", "lock blocks 1 to 2"],
        ["false", "lock blocks 3 to 5"],
    ]
    locked = page["locked"]
    assert (locks(locked), locked["locked"]) == ("b=3", [3, 4, 5])
    assert [card["lock"] for card in locked["cards"]] == [
        ["false", "lock blocks 1 to 2"],
        ["true", "unlock blocks 3 to 5"],
    ]
    assert [(card["words"], card["take"]) for card in locked["cards"]] == [(False, False), (True, True)]
    assert page["menus"] == {"locked": ["unlock blocks 4 to 5"], "free": ["lock blocks 1 to 2"]}


def test_other_seed_remakes_the_free_shot_alone(page):
    """The second shot keeps its pictures. Catches: a lock of another shot's blocks; blocks promised that stay."""
    assert page["seeded"]["next"].startswith("next run: remakes blocks 1 to 2")
    again = page["again"]
    assert again["pictures"][2:] == page["made"]["pictures"][2:]
    assert not {*again["pictures"][:2]} & {*page["made"]["pictures"][:2]}
    assert [outcome == "given" for outcome in again["outcomes"]] == [False, False, True, True, True]
    assert again["next"] == "next run: nothing to remake"


STEPS = {
    "both": ("b=3, 2", [1, 2, 3, 4, 5]),
    "swapped": ("b=3, 0=2", [1, 2, 3, 4, 5]),
    "back": ("b=3, 2", [1, 2, 3, 4, 5]),
    "removed": ("2", [1, 2]),
    "restored": ("b=3, 2", [1, 2, 3, 4, 5]),
    "moved": ("b=3, 0=2", [1, 2, 3, 4, 5]),
    "ran": ("b=3, 0=2", [1, 2, 3, 4, 5]),
}


def test_locks_move_and_go_with_shots(page):
    """Catches: a lock without a key that is another shot's at the front; one left by a shot that is removed."""
    steps = page["steps"]
    assert {name: (locks(seen), seen["locked"]) for name, seen in steps.items()} == STEPS
    assert [card["lock"][1] for card in steps["moved"]["cards"]] == ["unlock blocks 1 to 3", "unlock blocks 4 to 5"]


def test_lock_and_card_are_undone_together(page):
    """Catches: a lock that is lost, or of no shot, once a step is undone."""
    steps = page["steps"]
    assert steps["swapped"]["undo"] == steps["both"]["undo"] + 1
    assert steps["removed"]["undo"] == steps["back"]["undo"] + 1
    assert steps["back"]["kept"] == steps["restored"]["kept"] == steps["both"]["kept"]
    assert steps["back"]["text"] == steps["restored"]["text"] == steps["both"]["text"]


def test_moved_locks_are_what_they_were(page):
    """Catches: a run that is refused, or another shot's pictures, after two locked shots changed places."""
    ran = page["steps"]["ran"]
    assert ran["error"] == ""
    assert ran["outcomes"] == ["given"] * 5
    pictures = page["again"]["pictures"]
    assert ran["pictures"] == pictures[2:] + pictures[:2]


def test_reload_keeps_locks_by_shot(page):
    ran = page["steps"]["ran"]
    names = ("kept", "locked", "pictures", "cards", "text", "next")
    assert {name: page["reloaded"][name] for name in names} == {name: ran[name] for name in names}


def test_unlocking_a_card_leaves_other_locks(page):
    assert (locks(page["freed"]), page["freed"]["locked"]) == ("0=2", [4, 5])
    assert page["freed"]["next"].startswith("next run: remakes blocks 1 to 3")
