"""The lines of a prompt, in the one form that prompts and prompt files share, and how a prompt is cleaned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sdvg_core.engine.inputs import Strength, read_strengths
from sdvg_core.errors import BadInput
from sdvg_core.text.prompts import clean_prompt, read_prompt, read_prompt_list, unshown


@pytest.mark.parametrize(
    "text, entries",
    [
        ("a calm sea", ((0, "a calm sea"),)),
        (
            "a calm sea\nwith gulls\n5: a storm\nwith rain",
            ((0, "a calm sea\nwith gulls"), (4, "a storm\nwith rain")),
        ),
        ("1: a calm sea\r\n 12 : a storm", ((0, "a calm sea"), (11, "a storm"))),
        ("a calm sea\n5 cut: a storm", ((0, "a calm sea"), (4, "a storm"))),
        ("a sea\n5 cute: a cat", ((0, "a sea\n5 cute: a cat"),)),
        ("a calm sea\n5:\na storm", ((0, "a calm sea"), (4, "a storm"))),
        # What only looks like a line of a block.
        ("a sea\n16:9, wide", ((0, "a sea\n16:9, wide"),)),
        ("a clock at\n10:30 in the morning", ((0, "a clock at\n10:30 in the morning"),)),
        ("a sea\n3 boats: red ones", ((0, "a sea\n3 boats: red ones"),)),
        ("a sea\nShot 5: a storm", ((0, "a sea\nShot 5: a storm"),)),
        ("a sea\u2028" + "5: a storm", ((0, "a sea\u2028" + "5: a storm"),)),
    ],
)
def test_a_line_with_a_number_and_a_colon_begins_a_prompt_and_others_go_on_with_it(text, entries) -> None:
    assert read_prompt(text).entries == entries


def test_a_strength_needs_no_prompt_and_may_have_one() -> None:
    read = read_prompt("a sea\n3 strength light:\n7 strength 0.6: a lake")
    assert read.entries == ((0, "a sea"), (6, "a lake"))
    assert read.strengths == ((2, "light"), (6, "0.6"))


@pytest.mark.parametrize(
    "text, fault",
    [
        ("a sea\n0: a storm", "of block 0"),
        ("a sea\n7: a storm\n5: a lake", "start at blocks 1, 7, 5"),
        ("a sea\n1: a storm", "start at blocks 1, 1"),
        ("5: a storm", "the first block has no prompt; write one before that of block 5"),
        ("a sea\n5:", "block 5 says nothing"),
        ("a sea\n5 strength much: a storm", "'much' is not a strength"),
        ("a sea\n5 strength 7: a storm", "'7' is not a strength"),
        ("3 strength light:", "describe what the video should show"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(text, fault) -> None:
    with pytest.raises(BadInput, match=fault):
        read_prompt(text)


@pytest.mark.parametrize(
    "text",
    [
        "1: a sea\n5 strength light: a storm",
        "a sea\n5: a storm\n12: a lake",
        "1: a sea\n5 cut: a storm",
        "1: a sea",
    ],
)
def test_lines_that_name_blocks_mean_the_same_in_a_file_and_in_the_option(tmp_path: Path, text: str) -> None:
    """The kind: one spelling with two meanings. Catches three videos of a story of three lines."""
    path = tmp_path / "story.txt"
    path.write_text(f"# storyboard\n\n{text}\n")
    assert read_prompt_list(path) == (read_prompt(text),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1: a sea\nwith gulls", "'with gulls' names none; number all lines for one video, or none"),
        ("a ball\na cube\n5: a storm", "'a cube' names none"),
        ("a sea\n7: a storm\n5: a lake", "start at blocks 1, 7, 5"),
        ("5: a storm", "the first block has no prompt; write one before that of block 5"),
    ],
)
def test_a_file_that_is_neither_a_list_nor_a_story_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "story.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=fault):
        read_prompt_list(path)


def test_a_story_in_a_file_may_state_its_first_blocks(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("[first 2] a sea\n5: a storm\n")
    (read,) = read_prompt_list(path)
    assert (read.first, read.entries) == (2, ((0, "a sea"), (4, "a storm")))


def test_a_prompt_that_no_block_reaches_is_told_with_the_block_the_video_ends_with() -> None:
    told = "The prompt from block 12 on is not shown: the video ends with block 9."
    assert unshown(read_prompt("a sea\n9: a storm\n12: a lake").starts, 8) == (told,)


def test_a_strength_holds_until_the_next_one() -> None:
    strong, light, number = Strength(skip=1), Strength(skip=3), Strength(share=0.6)
    assert read_strengths("strong", 2) == (strong, strong)
    assert read_strengths("strong,2:light,4:0.6", 5) == (strong, light, light, number, number)
    for text, fault in (("strong,6:light", "no block"), ("strong,light", "no block"), ("strong,2:", "is no")):
        with pytest.raises(BadInput, match=fault):
            read_strengths(text, 5)


def test_a_cut_belongs_to_the_block_whose_line_states_it():
    read = read_prompt("a sea\n3: a storm\n12 cut: a harbour\n15\tcut strength light: a lake")
    assert read.cuts == (11, 14)
    assert read.strengths == ((14, "light"),)
    embeddings = dict.fromkeys(read.texts)
    assert [read.conditions(embeddings)(at).cut for at in (0, 2, 10, 11, 13, 14)] == [False] * 3 + [True] * 3
    for silent in ("12 cut:", "12 cut strength light:"):
        with pytest.raises(BadInput, match="says nothing"):
            read_prompt(f"a sea\n{silent}")


# --- cleaning


@pytest.mark.parametrize(
    "prompt, cleaned",
    [
        ("  a \t boat\n\n at dawn ", "a boat at dawn"),
        ("dogs &amp;amp; kites", "dogs & kites"),
        ("caf\u00c3\u00a9 at night", "café at night"),  # UTF-8 that was once read as Latin-1
        ("the boat\u2019s sail", "the boat's sail"),
        ("a\u3000boat", "a boat"),
        ("a\x1b[31m red\x00 boat", "a red boat"),
    ],
)
def test_prompts_are_cleaned(prompt, cleaned):
    assert clean_prompt(prompt) == cleaned


@pytest.mark.parametrize("prompt", ["", " \n", "&nbsp;"])
def test_a_prompt_that_is_empty_after_cleaning_is_refused(prompt):
    with pytest.raises(BadInput, match="the prompt is empty; describe"):
        clean_prompt(prompt)


def test_without_ftfy_ascii_is_cleaned_and_anything_else_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert clean_prompt(" a &lt;red&gt;  boat ") == "a <red> boat"
    for prompt in ("café", "a\x00boat"):
        with pytest.raises(BadInput, match="pip install ftfy"):
            clean_prompt(prompt)
