"""Which picture of a run a card shows where shots begin afresh, run by node."""

import pytest
from comfy_page import call, write_modules

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


# A run of `a`, `b` (key #b) and `c` (#c), two blocks each.
MADE = {
    "places": [["#0", 1, 2], ["#b", 3, 2], ["#c", 5, 2]],
    "lines": [[3, "b"], [5, "c"]],
    "directions": "",
    "takes": "",
}
# What is asked now, the card's blocks, those old in their place, the picture's block, and whether it is old.
PICTURES = [
    ({}, (3, 4), [], 4, False),
    ({"lines": [[3, "new"], [5, "c"]]}, (3, 4), [3, 4], 4, True),
    (  # b and c have changed places
        {"places": [["#0", 1, 2], ["#c", 3, 2], ["#b", 5, 2]], "lines": [[3, "c"], [5, "b"]]},
        (3, 4),
        [3, 4, 5, 6],
        6,
        False,
    ),
    (  # and c has another take, or other words
        {"places": [["#0", 1, 2], ["#c", 3, 2], ["#b", 5, 2]], "lines": [[3, "c"], [5, "b"]], "takes": "3:2"},
        (3, 4),
        [3, 4, 5, 6],
        6,
        True,
    ),
    (
        {
            "places": [["#0", 1, 2], ["#c", 3, 2], ["#b", 5, 2]],
            "lines": [[3, "c"], [5, "b"]],
            "directions": "..t...",
        },
        (3, 4),
        [3, 4, 5, 6],
        6,
        True,
    ),
    ({"places": [["#c", 1, 2]], "lines": [[1, "c"]]}, (1, 2), [1, 2], 6, False),  # the others are gone
    ({"places": [["#b", 1, 3], ["#c", 4, 2]], "lines": [[1, "b"], [4, "c"]]}, (1, 3), [1, 2], 4, False),
    (  # a clone has the words of a shot that is there still
        {"places": [*MADE["places"], ["#d", 7, 2]], "lines": [*MADE["lines"], [7, "c"]]},
        (7, 8),
        [],
        None,
        False,
    ),
    (  # a shot that went on begins afresh
        {"places": [["#0", 1, 1], ["#n", 2, 1], *MADE["places"][1:]], "lines": [[2, "a"], *MADE["lines"]]},
        (2, 2),
        [2],
        2,
        True,
    ),
]


def test_a_card_shows_its_own_picture_wherever_it_stands(modules):
    """Catches: a moved shot dimmed as if it were remade; another shot's picture as a clone's."""
    source = """([made, now, [first, last], old]) => {
      const same = { router: "r", tau: 0, positive: "a", strengths: [], shots: "" };
      const sign = ({ lines }) => ({ ...same, prompts: lines });
      const { directions, takes } = made;
      const events = [1, 2, 3, 4, 5, 6].map((number) => ({ number }));
      const run = { info: { signature: sign(made), shots: made.places }, directions, takes, events };
      const asked = { ...now, before: 0, signature: sign(now) };
      const shown = js.shotPicture({ first, last }, run, asked, { blocks: "", old });
      return [shown.event?.number ?? null, shown.old];
    }"""
    cases = [[MADE, {**MADE, **now}, blocks, old] for now, blocks, old, *_ in PICTURES]
    assert call(modules, source, cases) == [list(case[-2:]) for case in PICTURES]


def test_runs_of_cards_stand_where_the_server_says(modules):
    """As its run tells them: key, first block and count, without the blocks of a clip."""
    source = """([text, blocks, before]) => {
      const board = js.readBoard({ text, blocks, directions: "", takes: "" }, before);
      return js.placesOf(board.shots, before);
    }"""
    cases = [["a\n3 fresh #b: b\n5: c\n7 fresh #d from #b: d", 8, 0], ["a\n4: b\n6 fresh #c: c", 6, 2]]
    assert call(modules, source, cases) == [
        [["#0", 1, 2], ["#b", 3, 4], ["#d", 7, 2]],
        [["#0", 1, 3], ["#c", 4, 3]],
    ]
