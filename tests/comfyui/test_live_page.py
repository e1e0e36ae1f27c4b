"""A live session in ComfyUI's page. What the page needs is said in comfy_page.py."""

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

page = page_of("live.js", seed=1700)

BEGUN = "a big black ring crawls right and down from the top left over dusk"


def test_button_says_why_none_can_begin(page):
    """Catches: a session that is begun and refused, with words already typed."""
    offered = page["offered"]
    assert [offered[name]["disabled"] for name in ("plain", "again")] == [False, False]
    words = {
        "budget": "budget",
        "directions": "automatic",
        "locks": "unlock",
        "until": "until_block",
        "drafter": "drafter",
        "positive": "SDVG Prompt or SDVG Pocket Models",
        "wired": "wire",
    }
    for name, word in words.items():
        assert offered[name]["disabled"], name
        assert word in offered[name]["name"]


def test_session_shows_itself_in_the_strip(page):
    """Its own row and buttons, in the place of those of a run. Catches: 80 squares before the first block."""
    begun = page["begun"]
    assert begun["squares"] == begun["blocks"] + 1
    assert begun["seen"] == [True, True, True, False, False]
    assert begun["focus"] == "INPUT", "who pressed Live can type at once"
    assert begun["named"]
    assert begun["says"].startswith("acts in ")


def test_beginning_changes_no_graph(page):
    """Catches: two steps to undo, of *live* on and off; a saved workflow that begins another session."""
    begun = page["begun"]
    assert begun["graph"] == page["before"]
    assert not begun["graph"]["live"]
    assert begun["steps"][0] == begun["steps"][1]


def test_pressed_live_shows_at_once(page):
    """Catches: a button that looks as before while another run goes on; *Again from 0*."""
    titles, captions = page["begun"]["buttons"]
    assert titles[0] == "It is queued, and begins when its models are loaded"
    assert "Again from 0" not in captions


def test_arrow_up_brings_the_first_words_too(page):
    assert page["begun"]["newest"] == BEGUN


def test_settings_begin_as_the_server_says(page):
    """Catches: a page that tells the server another usual value than its own."""
    assert page["begun"]["pace"]["set"] == page["begun"]["pace"]["usual"] == [2, 10]


def test_typed_words_show_from_their_block(page):
    """Catches: words that are lost, or that the film shows a minute later."""
    made_ahead = 2
    numbers = [step["block"] for step in page["typed"]]
    assert numbers == sorted(set(numbers))
    for step in page["typed"]:
        assert step["coming"] == f"from block {step['block']} on: {step['text']}"
        assert step["shown"] == f"now: {step['text']}"
        assert step["box"] == ""
    prompts = page["back"]["prompts"]
    for step in page["typed"]:
        assert prompts[step["block"] - 1] == step["text"], step["block"]
    assert page["typed"][0]["block"] <= page["begun"]["blocks"] + made_ahead + 1


def test_words_the_graph_cannot_hold_stay_here(page):
    """Catches: a text that ComfyUI strips as it is queued, so that the recording is another film."""
    assert page["refused"]["sent"] == []
    for words, sentence in page["refused"]["seen"].items():
        assert ("takes" in sentence) == ("5" not in words and "7" not in words)
        assert ("number" in sentence) == ("5" in words or "7" in words)


def test_held_session_makes_nothing_and_plays(page):
    """Catches: a key that acts while its letter is typed into the box."""
    held = page["held"]
    assert held["letter"] == "h"
    assert held["left"] == "Hold"
    assert held["blocks"][0] == held["blocks"][1]
    assert held["pace"].startswith("held: no more blocks are made")


def test_cut_without_words_is_said(page):
    """Catches: *from block 7 on*, and nobody knows what."""
    assert page["held"]["note"] == f"hard cut, from block {page['held']['blocks'][0] + 1} on"


def test_words_after_a_pressed_button_are_typed(page):
    """Catches: *a big red fox* after *Cut* was clicked: again from here, and the x ends the session."""
    assert page["held"]["typed"] == "xha"


def test_words_act_after_the_film_caught_up(page):
    """Which plays again what was made while the session was held. Catches: *acts in 0.2 s*, and it was four."""
    seconds = float(page["held"]["on"]["says"].split()[2])
    assert seconds >= page["held"]["on"]["left"] - 0.5


def test_second_page_steers_the_session(page):
    beside = page["beside"]
    assert beside["refusal"] == ""
    assert beside["note"].startswith(("hard cut, from block", "now:"))
    assert beside["joins"] == ["cut", "cut"]


def test_page_loaded_anew_goes_on(page):
    """Near the end of what is made. Catches: a page that plays the whole film first, and a session that waits."""
    loaded = page["loaded"]
    assert loaded["first"] >= loaded["blocks"] - 2
    assert loaded["after"]["blocks"] >= loaded["blocks"] + 2


def test_again_drops_what_came_after(page):
    """Catches: the picture of the block that was made first, which the browser keeps."""
    back = page["back"]
    assert back["items"][:5] == ["Again from 3", "hard cut", "fresh shot", "Hold", "End"]
    assert [picture.split("/")[1].split(":")[0] for picture in back["pictures"]] == ["3", "3?e=1"]
    assert back["takes"][:3] == [1, 1, 2]
    assert back["blocks"] < len(back["prompts"])
    assert "block 3 is made again" in back["notes"]
    assert back["told"], "the server hears at once how much is left of what was shown"
    assert min(back["told"]) <= 2


def test_end_is_answered_at_once(page):
    """While the last block is made. Catches: a button that can be pressed again, and says nothing."""
    assert page["ended"]["ending"] == ["ends after this block", True]


def test_recording_is_in_the_graph(page):
    """Words, seed, takes and length; live is off. Catches: a node that begins another session with the next run."""
    recording = page["ended"]["recording"]
    graph = page["ended"]["graph"]
    assert recording["text"] == f"1: {graph['prompt']}"
    assert graph["prompt"].startswith(f"{BEGUN}\n")
    assert {name: graph[name] for name in ("seed", "takes", "blocks")} == {
        name: recording[name] for name in ("seed", "takes", "blocks")
    }
    assert recording["takes"] == "3:2"
    assert not graph["live"]
    assert page["ended"]["squares"] == recording["blocks"]
    assert len(page["ended"]["cards"]) == len(graph["prompt"].splitlines())


def test_end_says_what_was_made(page):
    """Catches: *made in 0.0 s*, of an earlier run; a server that no longer has the run that just ended."""
    legend, said = page["ended"]["said"]
    assert f"{page['ended']['recording']['blocks']} of the live session" in legend
    assert "made in" not in legend
    assert page["ended"]["seconds"] > 0
    assert not [text for text in said if "no longer" in text]


def test_line_of_a_draft_wraps_between_words(page):
    """Catches: *without scori* and *ng it*, as a reason is held together like a comparison."""
    assert "draft kept, the route keeps the draft without scoring it" in page["ended"]["line"]


def test_take_of_a_small_square_hides_no_picture(page):
    """Catches: a black bar over the whole picture, where there are many squares."""
    square, badge = page["ended"]["badge"]
    assert 0 < badge < 0.6 * square


def test_words_past_the_end_stay_in_the_box(page):
    """Catches: a space, as the session ends, that presses *Live* and begins another one."""
    over = page["over"]
    assert over["sessions"][0] == over["sessions"][1]
    assert (over["words"], over["focus"]) == ("a r x", "INPUT")
    assert over["says"] == "The session is over: press Live to begin another one"
    assert not over["isSeen"], "the box goes as it is left"


def test_recording_is_undone_in_one_step(page):
    """Catches: a second step, of the height that Nodes 2.0 gives the node as the cards open."""
    before, after = page["ended"]["steps"]
    assert after == before + 1
    undone, redone = page["undone"]
    assert undone == page["before"]
    assert redone == page["ended"]["graph"]


def test_route_finishes_the_recording(page):
    """With own drafter context no draft is made again. Catches: a recording that leads to other drafts."""
    finished = page["finished"]
    [item] = [item for item in finished["items"] if item.startswith("finish the live recording")]
    assert "remake" in item
    assert "nothing" not in item
    assert "live recording as text…" in finished["items"]
    assert finished["scored"] == finished["drafted"] - 1
    passes = finished["passes"]
    assert (passes["drafter_denoising"], passes["drafter_context"]) == (0, 0)
    assert passes["target_denoising"] > 0
    assert finished["graph"] == page["ended"]["graph"]


def test_dropped_blocks_are_offered_as_text(page):
    """Catches: what *again* dropped, which only ComfyUI's history has."""
    [dropped] = page["ended"]["dropped"]
    [item] = [item for item in page["finished"]["items"] if item.startswith("before Again")]
    assert item == f"before Again no. 1: {dropped['blocks']} blocks, as text…"
    assert page["finished"]["dropped"]["text"] == dropped["text"].removeprefix("1: ")
    assert f"{dropped['blocks']} blocks" in " ".join(page["finished"]["dropped"]["sentences"])


def test_recording_is_refined_from_the_menu(page):
    """What is made is said before, and one step takes the route back. Catches: a height that is a step."""
    refined = page["refined"]
    assert "refine the live recording, medium (remakes every block)" in refined["items"]
    passes = refined["passes"]
    assert (passes["drafter_denoising"], passes["target_denoising"]) == (0, 2 * refined["blocks"])
    assert refined["route"] == {"policy": "refine", "policy.strength": "medium"}
    before, after, undone = refined["steps"]
    assert (after, undone) == (before + 1, before)
    assert "finish the live recording (nothing to remake)" in refined["again"]
    assert not [item for item in refined["again"] if item.startswith("refine")]
    assert refined["undone"]["policy"] == "reward"
    assert refined["undone"]["policy.tau"] == -0.7
    assert refined["graph"] == page["ended"]["graph"]


def test_words_survive_the_page_that_queues(page):
    """Catches: a choice `{a|b}` that is drawn as the recording is made again."""
    for text, sent, parts in page["texts"]:
        assert sent == text
        assert "".join(words for _, words in parts) != ""
    assert page["texts"][2][2] == [[1, "a ball"], [3, "a {ring}"], [5, "a | b"]]


def test_graph_that_was_changed_is_left_alone(page):
    """Catches: a length that the user set meanwhile, overwritten."""
    changed = page["changed"]
    assert changed["graph"]["blocks"] == 33
    assert changed["graph"]["prompt"] == page["ended"]["graph"]["prompt"]
    assert not changed["graph"]["live"]
    assert "changed meanwhile" in changed["sentences"][0]
    assert f"{changed['recording']['blocks']} block" in changed["sentences"][1]
    assert changed["text"] == changed["recording"]["text"].removeprefix("1: ")
    assert changed["focus"] == "Copy"
