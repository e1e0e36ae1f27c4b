"""The shots of a video as cards in ComfyUI's page. What the page needs is said in comfy_page.py."""

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

BALL = "a big yellow ball runs right and down from the middle over night"
RING = "a small red ring rests on grass"
GREEN = "a small green ring rests on grass"
SAND = "a large blue ball rests on sand"

page = page_of("shots.js", seed=300)


def held(seen):
    """Return what the nodes hold."""
    return (seen["text"], seen["blocks"], seen["directions"], seen["takes"])


def of_cards(seen, name):
    return [card[name] for card in seen["cards"]]


def test_one_shot_has_a_card_on_request(page):
    """A button shows it, and hides it again. Catches: a node that keeps the room of cards that are hidden."""
    assert (page["one"]["button"][1], of_cards(page["one"], "seen")) == ("false", [False])
    assert (page["opened"]["button"][1], of_cards(page["opened"], "seen")) == ("true", [True])
    assert (page["closed"]["button"][1], set(of_cards(page["closed"], "seen"))) == ("false", {False})
    assert page["three"]["height"] >= page["one"]["height"]
    assert page["closed"]["height"] < page["second run"]["height"], "with the three cards shown"


def test_text_edits_show_in_the_cards(page):
    three = page["three"]
    assert of_cards(three, "prompt") == [BALL, RING, SAND]
    assert of_cards(three, "blocks") == [3, 3, 3]
    assert of_cards(three, "title") == ["Shot 1 · at 0.0 s", "Shot 2 · at 2.1 s", "Shot 3 · at 4.3 s"]
    assert of_cards(three, "seconds") == ["blocks, 2.1 s", "blocks, 2.3 s", "blocks, 2.3 s"]
    assert all(of_cards(three, "named")), "everything has a name for a screen reader"


def test_card_changes_stand_in_text_and_widgets(page):
    edits = page["edits"]
    assert held(edits["said"]) == (f"{BALL}\n4: {GREEN}\n7: {SAND}", 9, "", "")
    assert held(edits["left"]) == held(edits["said"])
    assert of_cards(edits["left"], "prompt")[1] == GREEN
    assert edits["cut"]["text"] == f"{BALL}\n4 cut: {GREEN}\n7: {SAND}"
    assert [button[0] for button in edits["cut"]["cards"][1]["buttons"]] == ["another take (2)", "lock", "hard cut"]
    assert edits["take"]["takes"] == "4:2"
    assert held(edits["shorter"]) == (f"{BALL}\n4 cut: {GREEN}\n6: {SAND}", 8, "", "4:2")
    assert held(edits["moved"]) == (f"{BALL}\n4 cut: {SAND}\n7: {GREEN}", 8, "", "7:2")
    assert edits["moved"]["focus"] == [3, "BUTTON"], "the focus goes with the shot"
    assert held(edits["removed"]) == (f"{SAND}\n4: {GREEN}", 5, "", "4:2")
    assert held(edits["added"]) == (f"{SAND}\n4: {GREEN}\n6: {GREEN}", 8, "", "4:2")
    assert edits["added"]["focus"] == [3, "TEXTAREA"]
    assert edits["named"]["text"] == f"{SAND}\n4: {GREEN}\n6: fog"


def test_menu_says_what_an_edit_remakes(page):
    assert page["edits"]["menu"] == [
        "take 1",
        "take 2",
        "move earlier (remakes blocks 1 to 2, blocks 6 to 8, the film becomes 3 frames shorter)",
        "move later (remakes blocks 4 to 8)",
        "add a shot before it (remakes blocks 4 to 11)",
        "add a shot after it (remakes blocks 6 to 11)",
        "clone (remakes blocks 6 to 10)",
        "remove (remakes blocks 4 to 6)",
    ]


def test_edit_of_several_widgets_is_undone_at_once(page):
    """Catches: a node whose height changes as a step is loaded, which would be a step of its own."""
    first, second = page["undone"]
    assert held(first) == held(page["edits"]["added"])
    assert held(second) == held(page["edits"]["removed"])
    assert of_cards(second, "prompt") == [SAND, GREEN]
    assert (first["differs"], second["differs"]) == ([], [])
    assert (first["redo"], second["redo"], first["undo"] - second["undo"]) == (1, 2, 1)


def test_undo_takes_back_the_last_edit_alone(page):
    """Catches: words that the browser takes back beside the page's step, written as an edit that ends redoing."""
    typed, cut = page["beside"]["edits"]
    undone, redone, again = page["beside"]["steps"]
    assert held(undone) == held(typed) != held(cut)
    assert held(redone) == held(cut)
    assert held(again) == held(typed)
    assert [step["differs"] for step in (undone, redone, again)] == [[], [], []]
    assert [step["redo"] - undone["redo"] for step in (redone, again)] == [-1, 0]
    assert held(page["beside"]["left"]) == held(page["undone"][1])


def test_a_shot_added_takes_the_words_typed(page):
    """Catches: the focus on a button, where letters are ComfyUI's hotkeys."""
    after = page["after"]
    assert after["added"]["focus"] == [2, "TEXTAREA"]
    assert of_cards(after["typed"], "prompt") == [SAND, "rain, wind and a sea", GREEN]
    assert after["entered"]["text"] == f"{SAND}\n4: rain, wind and a sea\n7: {GREEN}"


def test_cards_leave_unordered_lines_to_the_text(page):
    assert page["disordered"]["cards"] == []
    assert page["disordered"]["button"][0]
    assert page["disordered"]["button"][2].startswith("No cards: ")


def test_shot_shows_its_picture_and_is_locked(page):
    assert of_cards(page["made"], "shown") == ["3:7", "6:7", "9:7"]
    kept = page["kept"]
    assert kept["kept"] == "3"
    assert kept["locked"] == [
        "unlock blocks 1 to 3",
        "move later (remakes blocks 1 to 3, blocks 7 to 9, the film becomes 3 frames shorter)",
        "add a fresh shot before it (adds blocks 1 to 3)",
        "add a shot after it (remakes blocks 4 to 12)",
        "clone (remakes blocks 4 to 12)",
        "add a clip before it (nothing else changes)",
    ]
    assert kept["menu"] == [
        "move earlier (remakes blocks 1 to 3, blocks 7 to 9, the film becomes 3 frames shorter)",
        "move later (remakes blocks 4 to 9)",
        "add a shot before it (remakes blocks 4 to 12)",
        "add a shot after it (remakes blocks 7 to 12)",
        "clone (remakes blocks 7 to 12)",
        "remove (remakes blocks 4 to 6)",
    ]
    assert page["second run"]["outcomes"][:3] == ["given"] * 3
    assert "3 from an earlier run" in page["second run"]["legend"], "blocks 4 to 6 are as they were"


def test_words_typed_on_a_card_are_forecast(page):
    """Catches: *nothing to remake* over words being typed, until they are entered; a step to undo per letter."""
    before, typed, escaped, entered, undone = page["draft"]["states"]
    assert page["draft"]["typed"] == f"{SAND} in fog"
    assert before["next"] == escaped["next"] == undone["next"] == "next run: nothing to remake"
    assert typed["next"].startswith("next run: remakes blocks 7 to 9")
    assert entered["next"].startswith("next run: remakes blocks 7 to 9")
    assert typed["text"] == escaped["text"] == undone["text"] == before["text"]
    assert entered["text"] == f"{before['text']} by day"
    assert [step["undo"] - before["undo"] for step in (typed, escaped, entered, undone)] == [0, 0, 1, 0]


def test_pictures_made_for_another_prompt_are_marked_everywhere(page):
    """Catches: another shot's picture on a card, square, film or enlarged, as if it were the shot's own."""
    assert (page["made"]["old"], page["made"]["film"]) == ([], [False, "none"])
    assert {tuple(picture) for picture in of_cards(page["made"], "picture")} == {(False, "none")}
    shorter = page["shortened"]["shorter"]
    assert of_cards(shorter, "blocks") == [2, 3, 3]
    assert of_cards(shorter, "shown") == ["2:7", "5:7", "8:7"]
    assert of_cards(shorter, "picture") == [[False, "none"], [True, "dashed"], [True, "dashed"]]
    assert shorter["old"] == [3, 4, 5, 6, 7, 8]
    assert (shorter["film"], page["shortened"]["large"]) == ([False, "dashed"], "dashed")
    assert page["shortened"]["first"] == [False, "none"], "the film is at a block that stays"
    assert (page["shortened"]["back"]["old"], page["shortened"]["back"]["film"]) == ([], [False, "none"])


def test_a_card_keeps_no_picture_of_another_prompt(page):
    """A square still can, and says so. Catches: an action that acts on what is shown, though it is old."""
    keeps = {
        name: [[button[2] for button in buttons if button[0] == "lock"] for buttons in of_cards(seen, "buttons")]
        for name, seen in (("made", page["made"]), ("shorter", page["shortened"]["shorter"]))
    }
    assert keeps["made"] == [[False], [False], [False]], "also the last one"
    assert keeps["shorter"] == [[False], [True], [True]]
    [why] = [button[1] for button in page["shortened"]["shorter"]["cards"][1]["buttons"] if button[0] == "lock"]
    assert "blocks 3 to 5" in why
    assert any("old picture of blocks 3 to 5" in item for item in page["shortened"]["menu"])


def test_dragged_tau_marks_what_it_decides_otherwise(page):
    """Nothing is written before it is let go, and then one step that can be undone; keys do the same."""
    tau = page["tau"]
    scores = {event["number"]: event["score"] for event in tau["events"] if event["score"] is not None}
    assert (tau["before"]["tau"], tau["before"]["again"], tau["before"]["dots"]) == (-0.7, [], len(scores))
    dragged = tau["dragged"]
    first = next(number for number, score in scores.items() if (score >= -0.7) != (score >= dragged["now"]))
    assert (dragged["again"], dragged["uncertain"]) == (list(range(first, 10)), [])
    assert dragged["tau"] == -0.7
    assert dragged["text"].startswith(f"tau {dragged['now']:.2f}: ")
    assert dragged["text"].endswith(f"remakes blocks {first} to 9" if first < 9 else "remakes block 9")
    assert dragged["pos"] == tau["before"]["pos"], "the node stays where it is"
    assert tau["set"]["tau"] == dragged["now"]
    assert tau["set"]["again"] == list(range(first, 10))
    assert (tau["undone"]["tau"], tau["undone"]["again"]) == (-0.7, [])
    assert (tau["key"]["now"], tau["key"]["tau"]) == (-0.75, -0.7)
    assert (tau["left"]["now"], tau["left"]["again"], tau["left"]["uncertain"]) == (-0.7, [], [])
    assert (tau["entered"]["now"], tau["entered"]["tau"]) == (-0.6, -0.6)


def test_screen_reader_finds_a_name_for_everything(page):
    assert len(page["names"]) > 30
    assert [name for name, named in page["names"] if not named] == []
    assert page["chosen"] == "4", "the title of a card chooses its first block"


def test_idle_strip_with_many_blocks_costs_little(page):
    """In ten seconds no timer, drawn frame or request, of the page either; four elements a block."""
    counts = page["counts"]
    assert (counts["idle"], counts["requests"]) == (0, [])
    assert counts["many"] - counts["few"] == 4 * (100 - 9)
    assert counts["many"] < 600


def test_every_part_grows_and_shrinks_whatever_the_renderer(page):
    """Catches: a part opened in one renderer and closed in the other, whose height was NaN then."""
    steps = page["renderers"]
    assert {(renderer, part, open_) for renderer, part, open_, *_ in steps} == {
        (renderer, part, open_)
        for renderer in ("canvas", "nodes 2.0")
        for part in ("shots", "tau", "advanced", "film")
        for open_ in (True, False)
    }
    for *step, drawn, needed, saved, gap in steps:
        assert drawn is not None, step
        assert saved == drawn, step
        assert drawn >= needed, step
        assert 0 <= gap < 12, step


def test_wheel_scrolls_squares_and_zooms_elsewhere(page):
    """The layout is read as the mouse comes to a part. Catches: a part measured at every turn of the wheel."""
    counts = page["counts"]
    (top, scale), (scrolled, still), (_, zoomed) = counts["states"]
    assert (top, still) == (0, scale)
    assert scrolled > 0
    assert zoomed < scale
    assert counts["reads"][0] == 0
    assert counts["reads"][1] > 0, "a part was measured as the mouse came to it, and that is counted"
