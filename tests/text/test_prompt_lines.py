"""The lines of a prompt: what begins at a block, in the one form that prompts and prompt files share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdvg_core.engine.restyle import Strength, read_strengths
from sdvg_core.errors import BadInput
from sdvg_core.text.prompts import read_prompt, read_prompt_schedule


@pytest.mark.parametrize(
    "text, entries",
    [
        ("a calm sea", ((0, "a calm sea"),)),
        (
            "a calm sea\nwith gulls\n5: a storm\nwith rain",
            ((0, "a calm sea\nwith gulls"), (4, "a storm\nwith rain")),
        ),
        ("1: a calm sea\r\n 12 : a storm", ((0, "a calm sea"), (11, "a storm"))),
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
        ("5: a storm", "start at blocks 5"),
        ("a sea\n5:", "block 5 says nothing"),
        ("a sea\n5 strength much: a storm", "'much' is no strength"),
        ("a sea\n5 strength 7: a storm", "'7' is no strength"),
        ("3 strength light:", "describe what the video should show"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(text, fault) -> None:
    with pytest.raises(BadInput, match=fault):
        read_prompt(text)


def test_a_file_has_the_same_lines_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "schedule.txt"
    path.write_text("# storyboard\n1: a sea\n\n5 strength light: a storm\n")
    assert read_prompt_schedule(path) == read_prompt("a sea\n5 strength light: a storm")
    path.write_text("1: a sea\nwith gulls\n")
    with pytest.raises(BadInput, match="line 2 of schedule"):
        read_prompt_schedule(path)


def test_a_strength_holds_until_the_next_one() -> None:
    strong, light, number = Strength(skip=1), Strength(skip=3), Strength(share=0.6)
    assert read_strengths("strong", 2) == (strong, strong)
    assert read_strengths("strong,2:light,4:0.6", 5) == (strong, light, light, number, number)
    for text, fault in (("strong,6:light", "of no block"), ("strong,light", "of no block"), ("strong,2:", "is no")):
        with pytest.raises(BadInput, match=fault):
            read_strengths(text, 5)
