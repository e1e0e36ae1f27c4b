"""The shots of a video, run by node: text and cards are two views of the same values."""

import pytest
from comfy_page import PLAY, call, write_modules
from sdvg_pack.sdvg_core.text.prompts import read_prompt

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


SEA = "sea,\ngulls above it"
FOG = "3 cut: fog"
WEAK = "5 strength 0.2:"
LAST = "8 cut strength 1: 16:9"
LATER = "12: night"
DIRECTED = ".td..t..d"
TAKEN = "3:2, 8:2"
FILM = {"text": "\n".join((SEA, FOG, WEAK, LAST, LATER)), "blocks": 9, "directions": DIRECTED, "takes": TAKEN}
# An edit of it, and the text, directions and takes that are written; a shot that is moved takes its prompt along.
EDITS = [
    (["sayShot", 1, "snow"], (SEA, "3 cut: snow", WEAK, LAST, LATER), DIRECTED, TAKEN),
    (["sayShot", 1, ""], (SEA, WEAK, LAST, LATER), DIRECTED, TAKEN),
    (["sayShot", 2, "snow"], (SEA, FOG, "5 strength 0.2: snow", LAST, LATER), DIRECTED, TAKEN),
    (["sayShot", 3, ""], (SEA, FOG, WEAK, "8 strength 1:", LATER), DIRECTED, TAKEN),
    (["sayShot", 0, ""], (SEA, FOG, WEAK, LAST, LATER), DIRECTED, TAKEN),
    (["cutShot", 2, True], (SEA, FOG, "5 cut strength 0.2: fog", LAST, LATER), DIRECTED, TAKEN),
    (["cutShot", 1, False], (SEA, "3: fog", WEAK, LAST, LATER), DIRECTED, TAKEN),
    (
        ["lengthenShot", 1, 1],
        (SEA, FOG, "4 strength 0.2:", "7 cut strength 1: 16:9", "11: night"),
        ".td.t..d",
        "3:2, 7:2",
    ),
    (["lengthenShot", 2, 4], (SEA, FOG, WEAK, "9 cut strength 1: 16:9", "13: night"), ".td..t...d", "3:2, 9:2"),
    (["retakeShot", 1], (SEA, FOG, WEAK, LAST, LATER), DIRECTED, "3:3, 8:2"),
    (
        ["insertShot", 3],
        (SEA, FOG, WEAK, "8: fog", "11 cut strength 1: 16:9", "15: night"),
        ".td..t.....d",
        "3:2, 11:2",
    ),
    (["splitShot", 6], (SEA, FOG, WEAK, "6: fog", LAST, LATER), DIRECTED, TAKEN),
    (["splitShot", 5], (SEA, FOG, WEAK, LAST, LATER), DIRECTED, TAKEN),
    (
        ["removeShot", 1],
        (SEA, "3 cut strength 0.2: fog", "6 cut strength 1: 16:9", "10: night"),
        ".t.t..d",
        "6:2",
    ),
    (
        ["moveShot", 2, 1, "#a"],
        (SEA, "3 cut strength 0.2: fog", "6: fog", LAST, LATER),
        ".t.t.d..d",
        "6:2, 8:2",
    ),
    (
        ["moveShot", 1, 0, "#a"],
        ("1 fresh #a: fog", f"3 fresh #0: {SEA}", f"{WEAK} fog", LAST, LATER),
        "d..t.t..d",
        "1:2, 8:2",
    ),
]


def test_card_edit_writes_text_directions_and_takes(modules):
    plays = call(modules, PLAY, [{"values": FILM, "before": 0, "edits": [edit]} for edit, *_ in EDITS])
    for (first, written), (edit, lines, directions, takes) in zip(plays, EDITS, strict=True):
        assert first == FILM
        values = {"text": "\n".join(lines), "blocks": len(directions), "directions": directions, "takes": takes}
        assert written == values, edit


def test_shot_moved_back_is_where_it_was(modules):
    edits = [["moveShot", 1, 3, "#a"], ["moveShot", 3, 1, "#a"]]
    first, _, back = call(modules, PLAY, [{"values": FILM, "before": 0, "edits": edits}])[0]
    assert {**first, "text": first["text"].replace("0.2:", "0.2: fog")} == back


PLACES = [(False, True, False, False), (False, False, True, True), (False, True, True, True)]
CUTS = """([cuts, [name, ...given]]) => {
  const lines = cuts.map((cut, i) => `${2 * i + 1}${cut ? " cut" : ""}: prompt ${i}`);
  const board = js.readBoard({ text: lines.join("\\n"), blocks: 8, directions: "", takes: "" });
  return js[name](board, ...given).shots.map(({ cut }) => cut);
}"""


def cuts_after(cuts, name, i, *given):
    """Return which shots begin with a cut after an edit, given those that do before it."""
    if name == "cutShot":
        return [*cuts[:i], given[0] and i > 0, *cuts[i + 1 :]]
    if name in ("insertShot", "splitShot"):
        place = i if name == "insertShot" else (i - 1) // 2 + 1
        return [*cuts[:place], False, *cuts[place:]]
    if name == "moveShot" and i != given[0] and 0 in (i, given[0]):
        place = given[0] or 1  # of the shot that was the first, which begins afresh there
        return [*cuts[:place], False, *cuts[place + 1 :]]
    if name == "removeShot":
        beside = [cuts[i] or cut for cut in cuts[i + 1 : i + 2]]
        return [False, *[*cuts[:i], *beside, *cuts[i + 2 :]][1:]]
    return list(cuts)


def test_a_cut_stays_between_the_same_places(modules):
    """Catches: a cut that goes with its shot, to the video's beginning, or is lost with the shot before it."""
    edits = [["moveShot", i, to, "#a"] for i in range(4) for to in range(4)]
    edits += [["removeShot", i] for i in range(4)]
    edits += [["insertShot", i] for i in range(1, 5)]
    edits += [["splitShot", 4], ["cutShot", 0, True], ["cutShot", 2, True], ["cutShot", 2, False]]
    cases = [[cuts, edit] for cuts in PLACES for edit in edits]
    for seen, (cuts, edit) in zip(call(modules, CUTS, cases), cases, strict=True):
        assert seen == cuts_after(cuts, *edit), (cuts, edit)


def test_a_cut_typed_first_is_no_cut(modules):
    values = {"text": "1 cut: a sea\n4: fog", "blocks": 9, "directions": "", "takes": ""}
    first, longer = call(modules, PLAY, [{"values": values, "before": 0, "edits": [["lengthenShot", 1, 7]]}])[0]
    assert first["text"] == "a sea\n4: fog"
    assert longer["text"] == first["text"]


BEFORE = {"text": "a sea\n9: fog\n12: night", "blocks": 5, "directions": "t....", "takes": "3:2"}


def test_lines_count_the_blocks_of_a_clip(modules):
    """Seven blocks are the clip's: the run's first block is the eighth."""
    edits = [["lengthenShot", 1, 4], ["moveShot", 1, 2, "#a"]]
    boards = call(modules, PLAY, [{"values": BEFORE, "before": 7, "edits": edits}])[0]
    assert boards == [
        BEFORE,
        {"text": "a sea\n9: fog\n13: night", "blocks": 6, "directions": "t.....", "takes": "3:2"},
        {"text": "a sea\n9: night\n10: fog", "blocks": 6, "directions": "t.....", "takes": "4:2"},
    ]


# Lines and takes that the cards leave to the text: to edit them would lose something, or change what they mean.
ODD = [
    ("a sea\n5: fog\n3: night", ""),
    ("a sea\n5: fog\n5: night", ""),
    ("a sea\n1: fog", ""),
    ("a sea\n0: fog", ""),
    ("a sea", "6:2, nonsense"),
]


def test_cards_leave_odd_prompts_to_the_text(modules):
    source = "([text, takes]) => js.readBoard({ text, blocks: 9, directions: '', takes })"
    assert call(modules, source, ODD) == [None] * len(ODD)


# An edit of five shots of two blocks (four stay), the first block made again (None: not allowed), and how many.
REMADE = [
    ('js.moveShot(board, 2, 3, "#a")', 5, 6),
    ('js.moveShot(board, 4, 3, "#a")', 7, 4),
    ('js.moveShot(board, 1, 2, "#a")', None, 0),  # a shot that stays
    ('js.moveShot(board, 4, 1, "#a")', None, 0),  # into them
    ("js.removeShot(board, 2)", 5, 4),
    ("js.removeShot(board, 4)", 9, 0),  # the last one: nothing is made again
    ("js.removeShot(board, 0)", None, 0),
    ("js.lengthenShot(board, 2, 3)", 7, 5),
    ("js.lengthenShot(board, 4, 3)", 11, 1),
    ("js.lengthenShot(board, 1, 1)", None, 0),
    ("js.lengthenShot(board, 1, 3)", 5, 7),
    ("js.lengthenShot(board, 4, 99)", None, 0),  # more than the node takes
    ("js.cutShot(board, 3, true)", 7, 4),
    ("js.retakeShot(board, 3)", 7, 4),
    ("js.sayShot(board, 3, 'a pond')", 7, 4),
    ("js.sayShot(board, 3, '')", 7, 4),  # it goes on with the prompt before it
    ("js.insertShot(board, 5)", 11, 3),
    ("js.cutShot(board, 3, false)", 11, 0),
    ("js.splitShot(board, 8)", 11, 0),  # until it has a prompt of its own
    ("js.sayShot(js.splitShot(board, 8), 4, 'a pond')", 8, 3),
]


def test_an_edit_says_which_blocks_are_made_again(modules):
    """And none changes blocks that stay as they are."""
    text = "a sea\n3: fog\n5: night\n7: snow\n9: rain"
    sources = ", ".join(f"(board) => {edit}" for edit, *_ in REMADE)
    source = f"""(i) => {{
      const board = js.readBoard({{ text: {text!r}, blocks: 10, directions: "", takes: "" }});
      const next = [{sources}][i](board);
      const held = {{ before: 0, locks: [{{ key: "#0", blocks: 4 }}] }};
      return [js.allowed(board, next, held, 100), js.changed(board, next)];
    }}"""
    for (allowed, remade), (edit, first, count) in zip(
        call(modules, source, list(range(len(REMADE)))), REMADE, strict=True
    ):
        assert allowed == (first is not None), edit
        if allowed:
            stretch = {"from": first, "to": first + count - 1} if count else None
            assert remade["stretches"] == [stretch] * bool(count), edit


def test_typed_line_on_a_card_begins_no_shot(modules):
    """Nor does a shot that comes first with such a line."""
    values = {"text": "a sea\n4: fog", "blocks": 9, "directions": "", "takes": ""}
    edits = [["sayShot", 1, "5: rain\n7: wind\nhail"], ["moveShot", 1, 0, "#a"]]
    _, typed, moved = call(modules, PLAY, [{"values": values, "before": 0, "edits": edits}])[0]
    assert typed["text"] == "a sea\n4: 5: rain 7: wind\nhail"
    assert moved["text"] == "1 fresh #a: 5: rain 7: wind\nhail\n7 fresh #0: a sea"
    assert read_prompt(moved["text"]).texts == ("5: rain 7: wind\nhail", "a sea")
