"""Prompts: their lines, the directions in them, and how they are cleaned."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from sdvg_core.errors import BadInput
from sdvg_core.settings.request import (
    Shot,
    ShownClip,
    Strength,
    read_clips,
    read_shots,
    read_strengths,
    read_takes,
)
from sdvg_core.text.prompts import clean_prompt, notes_on_starts, prompt_lines, read_prompt


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
        ("a sea\n3 fresh #a: a lake\n5 fresh #a: a storm", "two shots have the key #a"),
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


OLDER = (
    *("2 fresh: air", "2 fresh air: a sea", "2 fresh # a: b"),
    *("2 clip art: a cat", "2 clip: a cat", "2 clip # a: b", "2 clips #a: b", "2 clip #a of it: b", "2 clip #a:1"),
)


@pytest.mark.parametrize("line", OLDER)
def test_older_texts_begin_no_shot(line):
    """Only a name after *fresh* or *clip* does. Catches: a prompt of before there were shots that becomes one."""
    prompt = read_prompt(f"a sea\n{line}")
    assert prompt.shots == (Shot(),)
    assert prompt.clips == ()
    assert prompt.texts == (f"a sea\n{line}",)


@pytest.mark.parametrize(
    ("text", "clips"),
    [
        ("a sea\n3 clip #a:", (ShownClip(2, "#a"),)),
        ("a sea\n 3\tclip  #a 1.5-4.0 : ", (ShownClip(2, "#a", "1.5-4.0"),)),
        ("1 clip #a:\n\n1: a sea", (ShownClip(0, "#a"),)),
        ("1 clip #a:\r\n1: a sea\n3 clip #c 0-0.063:\n3 clip #b:", None),
        ("a sea\n2 clip #a:\n2 fresh #k from #a: a lake", (ShownClip(1, "#a"),)),
    ],
)
def test_line_shows_a_clip_before_its_block(text, clips):
    """Catches: a clip of the block beside it, an order other than that of the lines, a clip as a prompt."""
    prompt = read_prompt(text)
    assert prompt.clips == (clips or (ShownClip(0, "#a"), ShownClip(2, "#c", "0-0.063"), ShownClip(2, "#b")))
    assert prompt.texts[0] == "a sea"
    assert prompt.changes


def test_part_of_a_clip_is_cut_to_frames():
    """Sixteen a second, without the one at its out. Catches: another rate, the out frame shown too."""
    assert ShownClip(0, "#a", "1.5-4.0").span == (24, 64)
    assert ShownClip(0, "#a", "0-0.063").span == (0, 1)
    assert ShownClip(0, "#a").span == (0, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a sea\n0 clip #a:", "of block 0"),
        ("a sea\n3 clip #A:", "1 to 12 of a-z and 0-9"),
        ("a sea\n3 clip #/tmp/a.mp4:", "1 to 12 of a-z and 0-9"),
        ("a sea\n3 clip #:", "1 to 12 of a-z and 0-9"),
        ("a sea\n3 clip #0:", "the film's first shot"),
        ("a sea\n3 clip #a: a storm", "has a text"),
        ("a sea\n3 clip #a:\na storm", "has a text"),
        ("a sea\n3 clip #a 2:", "seconds such as"),
        ("a sea\n3 clip #a 1,5-2:", "seconds such as"),
        ("a sea\n3 clip #a 4-1.5:", "in and out"),
        ("a sea\n3 clip #a 1-1.01:", "in and out"),
        ("a sea\n5 clip #a:\n3 clip #b:", "sort them"),
        ("a sea\n3 clip #a:\n5 clip #a:", "two lines show"),
        ("a sea\n3 clip #a:\n3 fresh #a: a storm", "a shot and a clip"),
        ("1 fresh #a from #a: a sea", "no shot before it"),
        ("a sea\n3 fresh #k from #a: a storm\n5 clip #a:", "no shot before it"),
        ("1 clip #a:", "the prompt is empty"),
    ],
)
def test_impossible_clip_is_refused(text, fault):
    with pytest.raises(BadInput, match=fault):
        read_prompt(text)


@pytest.mark.parametrize("text", ["4:#a 1-2,", "0:#a", "4 #a", "4:a", "4:#a  1-2", "4:#a 1-2 3", "x"])
def test_clips_of_a_request_are_read_or_refused(text):
    with pytest.raises(BadInput):
        read_clips(text)


@pytest.mark.parametrize(
    ("read", "text", "wrong"),
    [
        (read_shots, "1:#0,4:k3f,7:#c", "4:k3f"),
        (read_clips, "4:#a,7:b,9:#c", "7:b"),
        (partial(read_takes, blocks=9), "6:2, 8-3, 9:2", "8-3"),
    ],
)
def test_refusal_quotes_the_part_that_is_wrong(read, text, wrong):
    """Catches: the beginning of a long list, in which the part may not be."""
    with pytest.raises(BadInput, match=f" is '{wrong}'; write for example "):
        read(text)


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


@pytest.mark.parametrize(
    "text",
    [
        "1: a sea",
        "1: a sea\n5: 7: a storm\n6 cut: a storm\n8 fresh #k3f: a lake\n9 fresh #b from #k3f strength 0.6: fog",
        "1 fresh #a: a sea\n4 strength light:\n5: a storm",
    ],
)
def test_lines_of_a_schedule_are_read_back(text) -> None:
    assert prompt_lines(read_prompt(text)) == f"{text}\n"


def test_text_of_several_lines_becomes_one() -> None:
    """Which the text encoder reads the same. Catches a second line that a prompt file takes for another video."""
    written = prompt_lines(read_prompt("a sea\n  with gulls\n5: a storm"))
    assert written == "1: a sea with gulls\n5: a storm\n"
