"""Shots that begin afresh, as cards in ComfyUI's page. What the page needs is said in comfy_page.py."""

import re
from itertools import pairwise

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

page = page_of("fresh.js", seed=360)


def plain(text, keys):
    """Return a text with the keys that were drawn on the page as `#1`, `#2` and so on, in the order they came."""
    for key in re.findall("fresh (#[a-z0-9]+)", text):
        if key not in ("#0", "#b"):
            keys.setdefault(key, f"#{len(keys) + 1}")
    for key, name in keys.items():
        text = text.replace(f"{key}:", f"{name}:").replace(f"{key} ", f"{name} ")
    return text.split("\n")


LINES = {
    "switched": ["a sea", "3 fresh #b: fog", "5: rain", "7 fresh #1: snow"],
    "begun": ["a sea", "3 fresh #b: fog", "5: rain", "7 fresh #1 from #b: snow"],
    "moved": ["a sea", "3 fresh #b: fog", "5 fresh #1 from #b: snow", "7: rain"],
    "back": ["a sea", "3 fresh #b: fog", "5: rain", "7 fresh #1 from #b: snow"],
    "cloned": ["a sea", "3 fresh #b: fog", "5: rain", "7 fresh #1 from #b: snow", "9 fresh #2 from #b: snow"],
    "before": [
        *["1 fresh #3: a sea", "4 fresh #0: a sea", "6 fresh #b: fog", "8: rain"],
        *["10 fresh #1 from #b: snow", "12 fresh #2 from #b: snow"],
    ],
    "cut": [
        *["1 fresh #3: a sea", "4 fresh #0: a sea", "6 cut: fog", "8: rain"],
        *["10 fresh #1: snow", "12 fresh #2: snow"],
    ],
    "removed": ["1 fresh #3: a sea", "4 fresh #0: fog", "6: rain", "8 fresh #1: snow", "10 fresh #2: snow"],
}


def test_every_act_writes_the_lines_of_the_prompt(page):
    """Catches: a key that another shot has, that changes as the shot moves, or that a cut stands beside."""
    keys = {}
    assert {name: plain(seen["text"], keys) for name, seen in page["steps"].items()} == LINES
    assert [seen["blocks"] for seen in page["steps"].values()] == [8, 8, 8, 8, 10, 13, 13, 11]


def test_every_act_is_undone_in_one_step(page):
    texts = [page["first"]["text"], *(seen["text"] for seen in page["steps"].values())]
    assert page["undone"] == texts[-2::-1]
    assert page["redone"] == texts[1:]
    undo = [page["first"]["undo"], *(seen["undo"] for seen in page["steps"].values())]
    assert [later - earlier for earlier, later in pairwise(undo)] == [1] * len(page["steps"])


def test_cards_show_what_shots_begin_with(page):
    """Catches: a shot's seconds that are those of one long run."""
    assert [card["fresh"] for card in page["first"]["cards"]] == [
        None,
        ["true", "fresh"],
        *[["false", "fresh"]] * 2,
    ]
    assert [card["begins"] for card in page["first"]["cards"]] == [True, True, False, False]
    seconds = [card["seconds"] for card in page["first"]["cards"]]
    assert seconds == ["blocks, 1.3 s", "blocks, 1.3 s", "blocks, 1.5 s", "blocks, 1.5 s"]
    assert [page["steps"]["switched"]["cards"][3][name] for name in ("cut", "seconds")] == [
        "false",
        "blocks, 1.3 s",
    ]
    begun = page["steps"]["begun"]["cards"][3]
    assert (begun["fresh"], begun["seconds"]) == (["true", "from shot 3"], "blocks, 1.5 s")
    lengths = [page["first"]["length"], page["steps"]["switched"]["length"], page["steps"]["begun"]["length"]]
    assert lengths == [f"Length: 8 blocks = {frames / 16:.1f} s" for frames in (90, 87, 90)]


def test_keys_move_a_card_and_keep_its_focus(page):
    assert [page["steps"][name]["focus"] for name in ("moved", "back")] == [3, 4]


def test_a_lost_beginning_is_said(page):
    """Catches: a shot that is remade from nothing, without a word."""
    assert [message for message in page["steps"]["cut"]["messages"] if "begins with nothing" in message] != []
    assert page["steps"]["cloned"]["messages"] == []


def test_a_shot_is_made_alone(page):
    """Nothing behind the sampler runs but a report. Catches: a film that is made to its end."""
    assert page["queued"] == {"until": 5, "of": 11, "types": ["SDVGRouteReport"], "id": page["queued"]["id"]}


def test_cards_are_the_same_after_a_reload(page):
    last = page["steps"]["removed"]
    assert (page["reloaded"]["text"], page["reloaded"]["cards"]) == (last["text"], last["cards"])


def test_footage_has_cards_among_the_shots(page):
    """Catches: a line of footage that the cards lose, a clip's new name that its shot does not know.

    And of one that is taken away, the clip behind it too.
    """
    kinds = [kind.split()[-1] for kind in page["clips"]["kinds"]]
    assert kinds == ["afresh", "sdvg-clip", "afresh", "sdvg-add"]
    named = "a sea\n3 clip #sky:\n3 fresh #b from #sky: fog"
    cut = "a sea\n3 clip #sky 1.5-4:\n3 fresh #b from #sky: fog"
    moved = "a sea\n3 fresh #b: fog\n7 clip #sky 1.5-4:"
    assert page["clips"]["texts"] == [named, named, cut, cut, moved, cut, "a sea\n3 clip #c:\n3 fresh #b: fog"]


def test_moved_shots_keep_their_pictures(page):
    """Catches: a film dimmed as if it were remade, though nothing is; a clone with another's picture."""
    made = page["made"]
    assert made["first"]["cards"] == [["2:7", False], ["4:7", False], ["6:7", False]]
    assert made["moved"]["cards"] == [["4:7", False], ["2:7", False], ["6:7", False]]
    assert made["first"]["next"] == "next run: nothing to remake"
    assert made["moved"]["next"].startswith("next run: nothing to remake")
    assert made["cloned"]["cards"] == [["4:7", False], [None, False], ["2:7", False], ["6:7", False]]
    assert made["cloned"]["next"].startswith("next run: remakes blocks 3 to 4")


FIGURE = r"\d+(\.\d)?"
JOIN = (
    f"join: brightness {FIGURE} \\(usually {FIGURE}\\), contrast {FIGURE} \\({FIGURE}\\), "
    f"colours {FIGURE} from the first shot's, of 255"
)


def test_strip_shows_the_joins_of_shots(page):
    """At the first block of each shot but the first. Catches: figures beside their block, a legend without them."""
    joins = page["made"]["joins"]
    assert [bool(re.search(JOIN, title)) for title in joins["titles"]] == [False, False, True, False, True, False]
    assert re.search(f" · {JOIN}$", joins["detail"])
    assert re.search(
        f"colours, of 255, from the first shot's: block 3: {FIGURE}, block 5: {FIGURE}", joins["legend"]
    )


def test_a_shot_made_alone_is_shown_and_used(page):
    """On its card, while the film stays. Catches: its run shown as the film, its blocks made twice."""
    made = page["made"]
    assert made["said"]["cards"] == [["2:7", False], ["4:7", True], ["6:7", False]]
    assert made["said"]["next"].startswith("next run: remakes blocks 3 to 4,")
    assert made["alone"]["cards"] == made["first"]["cards"]
    assert made["alone"]["next"].startswith("next run: nothing to remake")
    assert made["all"]["cards"] == made["first"]["cards"]
    assert "6 from an earlier run" in made["earlier"]
