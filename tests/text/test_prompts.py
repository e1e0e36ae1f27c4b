"""Prompts: their lines, the directions in them, and how they are cleaned."""

from __future__ import annotations

import sys

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.settings.request import Shot, Strength, read_strengths
from sdvg_core.text.prompts import clean_prompt, notes_on_starts, read_prompt


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
def test_line_with_number_and_colon_begins_a_prompt(text, entries) -> None:
    assert read_prompt(text).entries == entries


def test_strength_needs_no_prompt() -> None:
    prompt = read_prompt("a sea\n3 strength light:\n7 strength 0.6: a lake")
    assert prompt.entries == ((0, "a sea"), (6, "a lake"))
    assert prompt.strengths == ((2, "light"), (6, "0.6"))


@pytest.mark.parametrize(
    "text, fault",
    [
        ("a sea\n0: a storm", "of block 0"),
        ("a sea\n7: a storm\n5: a lake", "start at blocks 1, 7, 5"),
        ("a sea\n1: a storm", "start at blocks 1, 1"),
        ("5: a storm", "the first block has no prompt"),
        ("a sea\n5:", "block 5 says nothing"),
        ("a sea\n5 strength much: a storm", "'much' is not a strength"),
        ("a sea\n5 strength 7: a storm", "'7' is not a strength"),
        ("3 strength light:", "describe what the video should show"),
    ],
)
def test_impossible_line_is_refused(text, fault) -> None:
    with pytest.raises(BadInput, match=fault):
        read_prompt(text)


def test_prompt_that_no_block_reaches_is_noted() -> None:
    """Catches: the block right after the last one, which counts as reached."""
    (note,) = notes_on_starts(read_prompt("a sea\n9: a storm\n10: a lake").starts, range(9))
    assert "block 10 on is not shown" in note


@pytest.mark.parametrize(
    ("new", "counts"),
    [
        (range(9), ()),
        (range(2, 11), ("block 4 is new block 2", "block 9 is new block 7")),
        (range(8, 17), ("block 9 is new block 1",)),
        (range(9, 12), ()),
    ],
)
def test_notes_give_both_numbers_after_a_clip(new: range, counts: tuple[str, ...]) -> None:
    """Catches: lines that count the clip's blocks, beside takes and squares that do not, with neither said."""
    notes = notes_on_starts(read_prompt("a sea\n4: a storm\n9: a lake").starts, new)
    assert [note.partition(": ")[2] for note in notes] == ([f"{', '.join(counts)}."] if counts else [])


def test_strength_holds_until_the_next() -> None:
    strong = Strength(skip=1)
    light = Strength(skip=3)
    share = Strength(share=0.6)
    assert read_strengths("strong", 2) == (strong, strong)
    assert read_strengths("strong,2:light,4:0.6", 5) == (strong, light, light, share, share)


@pytest.mark.parametrize(
    ("text", "fault"), [("strong,6:light", "no block"), ("strong,light", "no block"), ("strong,2:", "is no")]
)
def test_impossible_strength_is_refused(text, fault) -> None:
    with pytest.raises(BadInput, match=fault):
        read_strengths(text, 5)


def test_cut_begins_at_the_block_of_its_line():
    prompt = read_prompt("a sea\n3: a storm\n12 cut: a harbour\n15\tcut strength light: a lake")
    assert prompt.cuts == (11, 14)
    assert prompt.strengths == ((14, "light"),)
    conditions = prompt.conditions(dict.fromkeys(prompt.texts))
    assert [conditions(block).cut for block in (0, 2, 10, 11, 13, 14)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("line", ["12 cut:", "12 cut strength light:"])
def test_cut_without_a_prompt_is_refused(line):
    with pytest.raises(BadInput, match="says nothing"):
        read_prompt(f"a sea\n{line}")


def test_first_line_names_the_first_shot():
    prompt = read_prompt("1 fresh #k3f: a sea\n4 fresh #0: a lake")
    assert prompt.shots == (Shot(0, "#k3f"), Shot(3, "#0"))
    assert prompt.entries == ((0, "a sea"), (3, "a lake"))


@pytest.mark.parametrize(("line", "cuts"), [("1 cut: a sea", (0,)), ("a sea\n1 strength 0.6:", ())])
def test_line_of_block_1_is_no_fresh_shot(line, cuts):
    """Catches: an older text refused, as the film's first shot begins there anyway."""
    prompt = read_prompt(line)
    assert prompt.texts == ("a sea",)
    assert prompt.cuts == cuts
    assert prompt.shots == (Shot(),)


@pytest.mark.parametrize("line", ["2 fresh: air", "2 fresh air: a sea", "2 clip art: a cat", "2 fresh # a: b"])
def test_older_texts_begin_no_shot(line):
    """Only a key after *fresh* does. Catches: a prompt of before there were shots that becomes one."""
    prompt = read_prompt(f"a sea\n{line}")
    assert prompt.shots == (Shot(),)
    assert prompt.texts == (f"a sea\n{line}",)


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
def test_prompt_empty_after_cleaning_is_refused(prompt):
    with pytest.raises(BadInput, match="the prompt is empty"):
        clean_prompt(prompt)


def test_ascii_is_cleaned_without_ftfy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert clean_prompt(" a &lt;red&gt;  boat ") == "a <red> boat"


@pytest.mark.parametrize("prompt", ["café", "a\x00boat"])
def test_other_prompts_need_ftfy(prompt, monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(BadInput, match="pip install ftfy"):
        clean_prompt(prompt)
