"""The user's letters and takes as they are written, and what is said of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from directed_runs import directed
from tiny import make_engine

from sdvg_core.engine.directions import LETTERS, MOST_TAKES, check_directions, read_takes
from sdvg_core.engine.router import SCRIPT_LETTERS
from sdvg_core.errors import BadInput


def refusal(function: Any, *arguments: Any) -> str:
    """Return the one sentence, which says what is wrong and, after a semicolon or a way out, what to do."""
    with pytest.raises(BadInput) as caught:
        function(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "; " in sentence
    return sentence


def test_the_letters_are_those_of_a_script_and_a_dot() -> None:
    assert set(LETTERS) == {".", *SCRIPT_LETTERS} == set(".ardt")
    for letters in ("", "......", "ardt..", "tttttt"):
        check_directions(letters, 6)


@pytest.mark.parametrize(
    "letters", ["x.....", "A.....", ". ....", "t,d,..", "\n", "\uff41.....", 6, None, ["t"] * 6, b"t....."]
)
def test_anything_but_letters_is_refused_and_the_letters_are_named(letters: Any) -> None:
    sentence = refusal(check_directions, letters, 6)
    assert "directions use only the letters . a r d t" in sentence
    assert "t: the target makes the block" in sentence


@pytest.mark.parametrize(("letters", "count"), [(".", 1), ("t....", 5), ("t......", 7)])
def test_there_is_one_letter_for_each_block_or_none(letters: str, count: int) -> None:
    sentence = refusal(check_directions, letters, 6)
    assert f"one letter for each of the 6 blocks, but {letters!r} has {count};" in sentence


def test_a_very_long_wrong_text_does_not_fill_the_sentence() -> None:
    assert len(refusal(check_directions, "x" * 10_000, 6)) < 600
    assert len(refusal(check_directions, "t" * 10_000, 6)) < 600
    assert len(refusal(read_takes, "t" * 10_000, 6)) < 600


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", {}),
        ("  \n ", {}),
        ("6:2", {5: 2}),
        ("6:2,8:3", {5: 2, 7: 3}),
        (" 8:3;  6:2 ", {5: 2, 7: 3}),
        ("6:2\n8:3", {5: 2, 7: 3}),
        ("1:1, 9:1000000", {8: MOST_TAKES}),
        ("006:02", {5: 2}),
    ],
)
def test_takes_are_read_by_the_blocks_place(text: str, takes: dict[int, int]) -> None:
    assert dict(read_takes(text, 9)) == takes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("6", "a take is written as 6:2 (block 6, take 2), but got '6'"),
        ("6:2:1", "but got '6:2:1'"),
        ("six:two", "but got 'six:two'"),
        ("6:-2", "but got '6:-2'"),
        ("٦:٢", "but got '٦:٢'"),
        ("6:99999999", "but got '6:99999999'"),
        ("0:2", "the take 0:2 is of block 0, but the run has blocks 1 to 9"),
        ("10:2", "the take 10:2 is of block 10, but the run has blocks 1 to 9"),
        ("6:0", "takes are numbered from 1 to 1000000, but got 6:0"),
        ("6:1000001", "but got 6:1000001"),
        ("6:2, 6:3", "block 6 is given two takes, 2 and 3"),
        (None, "takes must be text such as 6:2"),
        ("6:2," * 300_000, "takes must be text such as 6:2"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_wrong_take_is_one_sentence(text: Any, says: str) -> None:
    assert says in refusal(read_takes, text, 9)


def test_a_run_refuses_wrong_directions_and_takes_before_anything_is_made() -> None:
    engine = make_engine()
    for options in ({"letters": "t"}, {"letters": "......x"}, {"takes": "7:2"}, {"takes": "x"}):
        with pytest.raises(BadInput):
            directed(**options, engine=engine)
    assert (engine.drafter.calls, engine.target.calls) == ((), ())
