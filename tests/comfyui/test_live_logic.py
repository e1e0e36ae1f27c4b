"""What the page works out of a live session, in JavaScript without a page. What that needs, comfy_page.py says."""

import pytest
from comfy_page import call, write_modules

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


PROMPTS = [
    ("a red ball, 5 stars", None),
    ("at 12:30: a red ball", None),
    ("a {red|blue} ball", None),
    ("a ball // red", "stripped"),
    ("a ball /* red", "stripped"),
    ("a \\ ball", "stripped"),
    ("a ball\na ring", "oneLine"),
    ("5: a ball", "namesBlock"),
    ("7 cut: a ball", "namesBlock"),
    ("9 fresh #k3f: a ball", "namesBlock"),
]


def test_prompts_the_graph_cannot_hold_are_refused(modules):
    """Catches: words that ComfyUI strips, or that begin another block once they stand in the graph."""
    source = "(prompt) => js.promptProblem(prompt)?.key ?? null"
    assert call(modules, source, [prompt for prompt, _ in PROMPTS]) == [key for _, key in PROMPTS]


# As both ComfyUIs' pages have it (formatUtil), which give no pack a way to call it.
DRAW = r"""(text) => {
  let at = 0;
  let out = "";
  const whole = text.replace(/\/\*[\s\S]*?\*\/|\/\/.*/g, "");
  while (at < whole.length) {
    const sign = whole[at++];
    if (sign === "\\") out += "\\" + whole[at++];
    else if (sign === "{") throw new Error("a choice");
    else out += sign;
  }
  return out.replace(/\\([{}|])/g, "$1");
}"""


def test_words_come_back_as_they_were_typed(modules):
    """Catches: a choice `{a|b}` that ComfyUI draws, in place of the words that were typed."""
    texts = ["a {small|large} ball", "}{ | }", "a ball\n3: a {ring}", "plain"]
    source = f"(text) => draw(js.escapeChoices(text));\nconst draw = {DRAW}"
    assert call(modules, source, texts) == texts


@pytest.mark.parametrize(
    "text, bare",
    [
        ("1: a ball\n5: a ring", "a ball\n5: a ring"),
        ("1: a ball", "a ball"),
        ("1 fresh #a: a ball", "1 fresh #a: a ball"),
        ("1: 5: a ball", "1: 5: a ball"),
        ("a ball\n1: a ring", "a ball\n1: a ring"),
    ],
)
def test_first_words_need_no_number(modules, text, bare):
    assert call(modules, "js.withBareFirst", [text]) == [bare]


RUN = """({ made, takes, frames = 12, upcoming = 1, reused = false }) => {
  const event = (_, i) => ({ run: "a", number: i + 1, seconds: takes, sprite: { frames }, reused });
  const info = { run: "a", live: true, fps: 16, state: { upcoming } };
  return js.newRun(info, Array.from({ length: made }, event));
}"""


@pytest.mark.parametrize(
    "given, seen, seconds",
    [
        ({"made": 0, "takes": 1}, 0, None),
        ({"made": 8, "takes": 0.1}, 6, 1.5),
        ({"made": 8, "takes": 0.1, "upcoming": 10}, 6, 2.25),
        ({"made": 8, "takes": 0.0, "upcoming": 10, "reused": True}, 6, 2.25),
        ({"made": 8, "takes": 0.1}, 6.5, 1.125),
        ({"made": 8, "takes": 1.9}, 8, 1.9),
        ({"made": 8, "takes": 1.9, "upcoming": 10}, 8, 3.8),
    ],
)
def test_words_act_after_what_is_made(modules, given, seen, seconds):
    """Catches: *acts in 0 s* on a slow machine, which has yet to make the block; silence where all was made."""
    source = f"([given, seen]) => js.secondsAhead(run(given), seen);\nconst run = {RUN}"
    [found] = call(modules, source, [[given, seen]])
    assert found == (seconds if seconds is None else pytest.approx(seconds))


def test_slow_growth_is_said(modules):
    cases = [{"made": 4, "takes": seconds} for seconds in (1.875, 0.75, 0.1)]
    cases.append({"made": 0, "takes": 9})
    source = f"(given) => js.growth(run(given));\nconst run = {RUN}"
    assert call(modules, source, cases) == [pytest.approx(0.4), None, None, None]


# Events, `number.edition`: what is known, what comes, what it is.
EVENTS = [
    ("1.0 2.0", "3.0", "next"),
    ("1.0 2.0", "2.0", "known"),
    ("1.0 2.0 3.0", "2.1", "again"),
    ("1.0 2.1", "2.1", "known"),
    ("1.0 2.1", "3.1", "next"),
    ("1.0", "3.1", "lost"),
]
EVENT = """(text) => {
  const [number, edition] = text.split(".").map(Number);
  return { run: "a", number, edition };
}"""


def test_block_made_again_takes_its_place(modules):
    """Catches: a block of a session that was set back, taken for one that is known."""
    source = f"""([known, next]) => {{
      const run = js.newRun({{ run: "a", live: true }}, known.split(" ").map(event));
      return js.placeOf(run, event(next));
    }};
    const event = {EVENT}"""
    assert call(modules, source, [case[:2] for case in EVENTS]) == [place for *_, place in EVENTS]


# What the page knows and whether it hears it, what the server says, and how many blocks are shown.
ACCOUNTS = [
    ("1.0 2.0", True, "1.0 2.0 3.0", 3),
    ("1.0 2.0 3.0", True, "1.0 2.0", 3),  # an answer that was late
    ("1.0 2.0 3.0", True, "1.0 2.1", 2),
    ("1.0 2.1", True, "1.0 2.0 3.0", 2),
    ("1.0 2.0 3.0", False, "1.0", 1),  # set back, and no other block is made yet
]


def test_account_of_a_session_is_the_newest(modules):
    """Catches: another page that goes on with blocks that are gone."""
    source = f"""([known, heard, answer]) => {{
      const run = (text) => js.newRun({{ run: "a", live: true }}, text.split(" ").map(event));
      const [merged] = js.mergeRuns([{{ ...run(known), heard }}], [run(answer)]);
      return [merged.events.length, merged.heard];
    }};
    const event = {EVENT}"""
    found = call(modules, source, [case[:3] for case in ACCOUNTS])
    assert found == [[count, heard] for _, heard, _, count in ACCOUNTS]


@pytest.mark.parametrize("known, told, shown", [(3, 2, 3), (2, 3, 3), (None, 1, 1), (4, None, 4)])
def test_state_of_a_late_answer_is_dropped(modules, known, told, shown):
    """Catches: *held* on the strip of a session that went on meanwhile."""
    source = """([known, told]) => {
      const run = (turn, made) => {
        const info = { run: "a", live: true, state: turn && { turn } };
        return js.newRun(info, Array.from({ length: made }, (_, i) => ({ run: "a", number: i + 1 })));
      };
      const [merged] = js.mergeRuns([{ ...run(known, 1), heard: true }], [run(told, 2)]);
      return [merged.events.length, merged.info.state.turn];
    }"""
    assert call(modules, source, [[known, told]]) == [[2, shown]]


def test_session_has_squares_for_its_blocks(modules):
    """Its next one too, as long as it goes on. Catches: 80 small squares, or made ones that look out of use."""
    source = """([made, done]) => {
      const events = Array.from({ length: made }, (_, i) => ({ number: i + 1, take: 2 }));
      const run = js.newRun({ run: "a", live: true, of: 80 }, events, done);
      const shots = [["#0", 1, 9]];
      const inputs = { blocks: 9, directions: "", takes: "1:3", lock: "", start: {}, shots };
      return js.squaresOf(inputs, run, null).map(({ take, usable }) => [take, usable]);
    }"""
    going, short, long = call(modules, source, [[2, None], [2, {}], [11, {}]])
    assert going == [[2, True], [2, True], [1, False]]
    assert [usable for _, usable in short] == [True] * 9
    assert [usable for _, usable in long] == [True] * 9 + [False] * 2
