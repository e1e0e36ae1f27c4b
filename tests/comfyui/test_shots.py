"""The shots of a video as the page edits them, run by node: text and cards are two views of the same values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from sdvg_pack.sdvg_core.engine.plan import check_directions, read_takes
from sdvg_pack.sdvg_core.text.prompts import read_prompt
from strip_modules import call, write_modules

pytestmark = pytest.mark.comfyui

SEQUENCES = 300
EDITS = 12
PROMPTS = ["a calm sea,\ngulls above it", "fog", "16:9, at 10:30", "7 cut: it says", "a lake\nand rain", "夜"]
# Each value, and after every edit the board as the values written from it are read again.
PLAY = """({ values, before, edits }) => {
  let board = js.readBoard(values, before);
  const seen = [js.writeBoard(board)];
  for (const [name, ...given] of edits) {
    board = js[name](board, ...given);
    const written = js.writeBoard(board);
    const [again, was] = [js.readBoard(written, before), board].map((one) => JSON.stringify(one));
    if (again !== was) throw new Error(`${name} ${given}: ${was}`);
    seen.push(written);
  }
  return seen;
}"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_modules(tmp_path_factory.mktemp("modules"))


class Film:
    """Shots as lists of blocks, edited as the cards are; `[cut, strength, prompt, blocks of (letter, take)]`."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.later = draw.choice([[], [(3, "never reached")]])
        self.shots = [self.shot(first=not i) for i in range(draw.randint(1, 5))]

    def shot(self, first: bool) -> list[Any]:
        draw = self.draw
        strength = "" if first else draw.choice(["", "", " strength 0.6"])
        prompt = "" if strength and draw.random() < 0.3 else draw.choice(PROMPTS)
        blocks = [(draw.choice("..td"), draw.choice([1, 1, 2])) for _ in range(draw.randint(1, 4))]
        return [not first and prompt != "" and draw.random() < 0.4, strength, prompt, blocks]

    def values(self) -> dict[str, Any]:
        """Return what the nodes hold, written by hand."""
        lines: list[str] = []
        start = 1
        for cut, strength, prompt, blocks in self.shots:
            lines.append(f"{start}{' cut' if cut else ''}{strength}: {prompt}")
            start += len(blocks)
        lines += [f"{start - 1 + past}: {prompt}" for past, prompt in self.later]
        marks = [mark for *_, blocks in self.shots for mark in blocks]
        takes = ", ".join(f"{i}:{take}" for i, (_, take) in enumerate(marks, 1) if take > 1)
        return {
            "text": "\n".join(lines),
            "blocks": len(marks),
            "directions": "".join(letter for letter, _ in marks),
            "takes": takes,
        }

    def speak(self) -> None:
        """Give every shot the prompt that is in force, as a shot that is moved takes it along."""
        force = ""
        for shot in self.shots:
            force = shot[2] = shot[2] or force

    def edit(self) -> list[Any]:
        """Make one edit, and return it as the page makes it."""
        i = self.draw.randrange(len(self.shots))
        shot = self.shots[i]
        kind = self.draw.choice(["say", "cut", "length", "take", "add", "move", "remove", "split"])
        if kind == "say":
            prompt = self.draw.choice([*PROMPTS, ""])
            if not prompt and not i:
                pass  # a video has a prompt
            elif prompt or shot[1]:
                shot[2] = prompt
                shot[0] = shot[0] and prompt != ""
            else:
                self.shots[i - 1][3] += self.shots.pop(i)[3]
            return ["sayShot", i, prompt]
        if kind == "cut":
            shot[0] = not shot[0]
            shot[2] = next((one[2] for one in reversed(self.shots[: i + 1]) if one[2]), "")
            return ["cutShot", i, shot[0]]
        if kind == "length":
            count = self.draw.randint(1, 5)
            shot[3] = (shot[3] + count * [(".", 1)])[: max(count, 0)]
            return ["lengthenShot", i, count]
        if kind == "take":
            letter, take = shot[3][0]
            shot[3] = [(letter, take + 1), *shot[3][1:]]
            return ["retakeShot", i]
        if kind == "add":
            prompt = next((one[2] for one in reversed(self.shots[: i + 1]) if one[2]), "")
            self.shots.insert(i + 1, [False, "", prompt, 3 * [(".", 1)]])
            return ["addShot", i]
        if kind == "split":
            at = self.draw.randrange(len(shot[3]))
            block = sum(len(one[3]) for one in self.shots[:i]) + at
            if at:
                prompt = next((one[2] for one in reversed(self.shots[: i + 1]) if one[2]), "")
                self.shots.insert(i + 1, [False, "", prompt, shot[3][at:]])
                shot[3] = shot[3][:at]
            return ["splitShot", block + 1]
        if kind == "remove" and len(self.shots) > 1:
            self.speak()
            del self.shots[i]
            return ["removeShot", i]
        to = self.draw.randrange(len(self.shots))
        self.speak()
        self.shots.insert(to, self.shots.pop(i))
        return ["moveShot", i, to]


def blocks_of(values: dict[str, Any]) -> list[Any]:
    """Return what every block is made by, as the server reads the values."""
    told = read_prompt(values["text"])
    check_directions(values["directions"], values["blocks"])
    takes = read_takes(values["takes"], values["blocks"])
    letters = values["directions"].ljust(values["blocks"], ".")
    made = []
    for number in range(values["blocks"]):
        prompt = [text for start, text in told.entries if start <= number][-1]
        strength = [text for start, text in told.strengths if start <= number][-1:]
        made.append([prompt, strength, number in told.cuts, letters[number], takes.get(number, 1)])
    return made


def test_cards_and_text_say_the_same_after_any_edits(modules: Path) -> None:
    """As the server reads the text, and by lists of blocks; and what is written is read as the board it was."""
    plays = []
    expected = []
    for seed in range(SEQUENCES):
        film = Film(random.Random(seed))
        values = film.values()
        edits = []
        states = [values]
        while len(edits) < EDITS:
            edits.append(film.edit())
            states.append(film.values())
        plays.append({"values": values, "before": 0, "edits": edits})
        expected.append(states)
    for told, states, play in zip(call(modules, PLAY, plays), expected, plays, strict=True):
        for i, (written, state) in enumerate(zip(told, states, strict=True)):
            assert blocks_of(written) == blocks_of(state), (play["edits"][:i], written)
            assert written["blocks"] == state["blocks"]


def test_a_shot_moved_there_and_back_is_where_it_was(modules: Path) -> None:
    values = {"text": "a sea\n4 cut: fog\n7: night", "blocks": 9, "directions": "...td....", "takes": "4:2, 9:3"}
    edits = [["moveShot", 1, 2], ["moveShot", 2, 1]]
    first, moved, back = call(modules, PLAY, [{"values": values, "before": 0, "edits": edits}])[0]
    assert moved == {
        "text": "a sea\n4: night\n7 cut: fog",
        "blocks": 9,
        "directions": "......td.",
        "takes": "6:3, 7:2",
    }
    assert back == first == values | {"directions": "...td...."}


BEFORE = {"text": "a sea\n9: fog\n12: night", "blocks": 5, "directions": "t....", "takes": "3:2"}


def test_lines_count_the_blocks_of_a_clip_that_is_continued(modules: Path) -> None:
    """Seven blocks are the clip's: the run's first block is the eighth."""
    edits = [["lengthenShot", 1, 4], ["moveShot", 1, 2]]
    told = call(modules, PLAY, [{"values": BEFORE, "before": 7, "edits": edits}])[0]
    assert told == [
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


def test_what_the_cards_cannot_say_is_left_to_the_text(modules: Path) -> None:
    source = "([text, takes]) => js.readBoard({ text, blocks: 9, directions: '', takes })"
    assert call(modules, source, ODD) == [None] * len(ODD)


# An edit of five shots of two blocks (four stay), the first block made again (None: not allowed), and how many.
AGAIN = [
    ("js.moveShot(board, 2, 3)", 5, 6),
    ("js.moveShot(board, 4, 3)", 7, 4),
    ("js.moveShot(board, 1, 2)", None, 0),  # a shot that stays
    ("js.moveShot(board, 4, 1)", None, 0),  # into them
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
    ("js.addShot(board, 4)", 11, 3),
    ("js.cutShot(board, 3, false)", 11, 0),
    ("js.splitShot(board, 8)", 11, 0),  # until it has a prompt of its own
    ("js.sayShot(js.splitShot(board, 8), 4, 'a pond')", 8, 3),
]


def test_an_edit_says_which_blocks_are_made_again(modules: Path) -> None:
    """And none changes blocks that stay as they are."""
    text = "a sea\n3: fog\n5: night\n7: snow\n9: rain"
    sources = ", ".join(f"(board) => {edit}" for edit, *_ in AGAIN)
    source = f"""(i) => {{
      const board = js.readBoard({{ text: {text!r}, blocks: 10, directions: "", takes: "" }});
      const next = [{sources}][i](board);
      return [js.allowed(board, next, 4, 100), js.changed(board, next)];
    }}"""
    for (allowed, told), (edit, first, count) in zip(
        call(modules, source, list(range(len(AGAIN)))), AGAIN, strict=True
    ):
        assert allowed == (first is not None), edit
        if allowed:
            assert told == {"from": first, "count": count}, edit


def test_a_line_typed_on_a_card_begins_no_shot(modules: Path) -> None:
    """Nor does a shot that comes first with such a line."""
    values = {"text": "a sea\n4: fog", "blocks": 9, "directions": "", "takes": ""}
    edits = [["sayShot", 1, "5: rain\n7: wind\nhail"], ["moveShot", 1, 0]]
    _, said, moved = call(modules, PLAY, [{"values": values, "before": 0, "edits": edits}])[0]
    assert said["text"] == "a sea\n4: 5: rain 7: wind\nhail"
    assert moved["text"] == "1: 5: rain 7: wind\nhail\n7: a sea"
    assert read_prompt(moved["text"]).texts == ("5: rain 7: wind\nhail", "a sea")


def test_a_line_with_a_cut_and_a_strength_is_read_as_the_server_reads_it(modules: Path) -> None:
    text = "a sea\n5 cut strength 0.6: fog"
    assert read_prompt(text).cuts == (4,)
    source = "(text) => js.readBoard({ text, blocks: 5, directions: '', takes: '' }).shots[1]"
    mark = {"letter": ".", "take": 1}
    expected = {"cut": True, "strength": " strength 0.6", "prompt": "fog", "marks": [mark]}
    assert call(modules, source, [text]) == [expected]
