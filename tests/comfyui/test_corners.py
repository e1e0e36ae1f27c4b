"""What is rare on a page, in ComfyUI's page. What the page needs is said in comfy_page.py."""

import re

import pytest
from comfy_page import page_of

pytestmark = pytest.mark.comfyui

page = page_of("corners.js", seed=700)


def test_typed_prompt_reaches_the_strip_without_a_click(page):
    """Catches: *nothing to remake* over a prompt that has changed, until a click elsewhere."""
    assert page["prompted"]["before"] == "next run: nothing to remake"
    assert "7 to 9" in page["prompted"]["after"]


def test_takes_asked_for_arrive_whatever_is_changed(page):
    """Catches: a wait without end for pictures that are there, as something was changed and not run before."""
    labels = page["taken"]["changed"]
    assert len(labels) == 4
    assert not [label for label in labels if "made: " in label or label.endswith("being made")]


def test_takes_that_never_come_say_so(page):
    """Catches: a wait without end after runs that are interrupted, taken from the queue, or refused."""
    interrupted = page["taken"]["interrupted"]
    assert "not made" in interrupted[-1]
    assert not [label for label in interrupted if label.endswith("being made")]
    assert len(page["taken"]["refused"]) == 1


def test_lock_of_last_shot_is_given_up(page):
    """Three shots of three blocks: the last card's button locks all nine, and the first card's then unlocks all.

    Of a button: disabled, aria-pressed, title. Catches: a lock that is off where the shot is made, one that looks
    disabled, and no way back.
    """
    free, locked = page["locked"]["states"]
    assert free == [False, "false", "lock blocks 1 to 9"]
    assert page["locked"]["lock"] == "9"
    assert locked == [False, "true", "unlock blocks 7 to 9"]
    assert page["locked"]["left"] == ""


def test_run_that_locks_refuse_is_not_promised(page):
    """Catches: squares that stay or change in a run which is then refused; two sentences for one refusal."""
    refused = page["locked"]["refused"]
    assert "96" in refused["next"]
    assert refused["marked"] == 0
    assert refused["error"] == refused["next"]
    assert refused["after"] == "next run: nothing to remake"
    assert refused["left"] == "", "what it complains about is repaired"


def test_what_went_wrong_can_be_read(page):
    """Catches: a sentence cut off at the end of a column, with no way to its rest."""
    refused = page["locked"]["refused"]
    assert refused["place"] == {"title": refused["error"], "above": 0}


def test_button_of_a_locked_card_says_its_state(page):
    """Catches: a pressed button that reads as what it would do if it were not."""
    assert page["locked"]["label"] == "locked"


def test_cards_stay_open_while_they_are_edited(page):
    """Catches: a panel that closes under the mouse as the second of two shots is removed."""
    assert page["edited"]["left"] == [1, "true"]


def test_other_length_leaves_the_named_block(page):
    """Catches: a button that names another block than the one looked at, as the number of squares changes."""
    before, after = page["edited"]["names"]
    assert before == after


def test_run_of_a_locked_video_shows_it(page):
    """Catches: a refused run, or an empty strip, once the last shot is locked."""
    film = page["locked"]["film"]
    assert film["outcomes"] == ["given"] * 9
    assert film["error"] == ""
    assert film["next"] == "next run: nothing to remake"
    assert film["time"].endswith("/ 6.6 s")


def test_blocks_of_a_restyled_clip_offer_no_lock(page):
    """Catches: a lock that is offered, written and then refused by the run."""
    disabled, _, title = page["restyled"]["lock"]
    assert disabled
    assert "restyled" in title
    assert not any(item.startswith("lock") for item in page["restyled"]["menu"])


def test_undo_takes_back_a_length(page):
    """Catches: a step that is undone only once the focus is elsewhere; a number typed that undoing leaves."""
    assert page["undone"] == [["11", "5"], ["9", "3"], ["10", "4"], ["9", "3"], ["9", "3"]]


def test_emptied_first_prompt_is_explained(page):
    """Catches: words that come back without a word."""
    assert page["emptied"]["prompt"] == "a big yellow ball runs right"
    assert any("first shot needs a prompt" in message for message in page["emptied"]["messages"])


def test_until_block_beyond_the_video_is_told(page):
    """Catches: a run that is refused for a block which the strip could have named."""
    beyond, inside, whole = page["until"]
    assert "until_block is 12" in beyond
    assert inside == whole == "next run: nothing to remake"


def test_cards_of_a_shared_prompt_say_so(page):
    """Catches: another sampler's prompt changed from a card without a word."""
    assert any("all of them" in message for message in page["copied"]["shared"])


def test_number_confirmed_by_a_key_reaches_the_strip(page):
    """Catches: a forecast that is one edit behind in Nodes 2.0, until a click elsewhere."""
    seeded, back, longer, as_before = page["typedNumbers"]
    assert seeded.startswith("next run: remakes every block")
    assert longer.startswith("next run: remakes block 10")
    assert back == as_before == "next run: nothing to remake"


def test_locked_card_is_legible_and_offers_no_take(page):
    """Catches: a card that looks disabled, and a button on it that does nothing."""
    disabled, opacity, title = page["locked"]["looks"]
    assert (disabled, opacity) == (True, "1")
    assert "unlock" in title


def test_length_beyond_the_most_becomes_the_most(page):
    """Catches: 99999 or letters that jump back without a word."""
    allowed = "1 to 4090 blocks"
    assert page["typed"]["lengths"] == [["4090", allowed], ["1", allowed], ["1", allowed], ["1", allowed]]


def test_entered_prompt_leaves_the_box(page):
    """Catches: a step that is undone as one letter, which then goes into the prompt."""
    assert page["typed"]["focus"] == "sdvg-shot-title"


def test_press_in_vain_is_explained(page):
    """Catches: a key, a button or a typed line that does nothing, or something else, without a word."""
    told = page["told"]
    assert ["Run" in message for message in told["square"]] == [True]
    assert ["Run" in message for message in told["card"]] == [True]
    assert ["shot" in message for message in told["line"]] == [True]
    assert told["prompt"] == "a small red ring\nrests on grass 8: fog"


def test_card_shows_the_strength_of_its_line(page):
    """Catches: a shot restyled with a strength that only the text says."""
    assert page["told"]["title"].endswith("strength 0.5")


def test_length_that_is_typed_stays(page):
    """Catches: a number put back to the old one by what the server says meanwhile."""
    assert page["told"]["length"] == "5"


def test_forgotten_run_is_named(page):
    """Catches: a lock that is offered and then fails, and a forecast by a run that is gone."""
    disabled, _, title = page["forgotten"]["lock"]
    assert disabled
    assert "started again" in title
    assert page["forgotten"]["next"].endswith("may remake blocks 1 to 9")


def test_drawn_words_are_asked_for_as_typed(page):
    """Catches: a word drawn anew at every question, so that all blocks are said to change."""
    assert page["drawn"]["texts"] == ["a {big|small} yellow ball runs right"]
    assert page["drawn"]["next"] == "next run: may remake every block"


def test_a_copy_shows_the_run_of_its_settings(page):
    """Catches: a duplicated sampler without a film, though the server has this run."""
    assert None not in page["copied"]["outcomes"]
    assert page["copied"]["next"] == "next run: nothing to remake"


def test_every_card_is_in_sight(page):
    """Catches: a third card cut off, without a bar to scroll."""
    assert all(page["wrapped"]["inside"])
    assert page["wrapped"]["wide"]
    assert page["wrapped"]["rows"] > 1


def test_squares_keep_pictures_and_numbers_at_any_length(page):
    """Catches: pictures lost with a change of the number of blocks, and squares without numbers."""
    states = page["resized"]
    assert [(state["count"], state["pictures"]) for state in states] == [(9, 9), (60, 9), (9, 9), (3, 3), (9, 9)]
    assert all(state["size"] > 0 for state in states)


def test_values_of_another_choice_are_reset_and_told(page):
    """Catches: a word or a switch left in a number, which nobody sees and the server refuses."""
    values = page["wrong"]["values"]
    assert values["policy"] == "balanced"
    numbers = [value for name, value in values.items() if re.search("blocks|steps|handover", name)]
    assert all(isinstance(value, int) and not isinstance(value, bool) for value in numbers)
    assert any("policy" in str(message) for message in page["wrong"]["messages"])


def test_strip_says_that_its_sampler_is_bypassed(page):
    """When a report needs it. Catches: the report's 'required input is missing', which names no cause."""
    assert "bypassed" in page["bypassed"]


def test_cards_wait_for_the_length_of_a_clip(page):
    """Catches: a line that cards write too early: it counts blocks of the clip, which the first run finds."""
    before = page["extended"]["before"]
    assert before["disabled"]
    assert "first run" in before["title"]
    assert before["cards"] == []


def test_cards_show_both_numbers_after_a_clip(page):
    """Catches: a line whose number is another one than its block's, with neither said."""
    after = page["extended"]["after"]
    assert not after["disabled"]
    assert [card.partition(" · line")[2] for card in after["cards"]] == ["", " 4:", " 7:"]
    assert "new prompt from block 4 on (line 6:)…" in page["extended"]["menu"]


def test_times_begin_where_the_clip_ends(page):
    """Catches: blocks of an extended clip that begin at 0.0 s; a length of the clip claimed before it is known."""
    before = page["extended"]["before"]
    after = page["extended"]["after"]
    clip = after["clip"] / 16
    assert clip > 1
    assert before["from"][:3] == ["+0.0 s", "+0.8 s", "+1.5 s"]
    times = [f"{clip + seconds:.1f} s" for seconds in (0, 0.75, 1.5)]
    assert after["from"][:3] == [f"at {time}" for time in times]
    assert [card.split(" · ")[1] for card in after["cards"]][:2] == [f"at {time}" for time in times[:2]]


def test_sampler_alone_in_a_subgraph_keeps_cards(page):
    """Catches: cards, their button and tau gone, as the prompt and the router are outside."""
    assert page["inside"] == {"shots": True, "cards": 3, "tau": True}
