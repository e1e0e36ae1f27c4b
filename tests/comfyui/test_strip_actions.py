"""What a key does at a square of the strip, run by node with a strip that only listens."""

import json

import pytest
from comfy_page import run_node, write_modules
from running_server import ROOT

pytestmark = pytest.mark.comfyui

PROGRAM = """
globalThis.i18n = { en: WORDS };
const messages = [];
const toast = { add: ({ detail }) => messages.push(detail) };
globalThis.app = { extensionManager: { setting: { get: () => "en" }, toast } };
const { StripActions } = await import("./strip_actions.js");
const written = [];
const shots = [["#0", 1, 9]];
const values = { lock: "3:a", blocks: 9, directions: "", takes: "", start: {}, shots };
const strip = {
  inputs: { now: () => values, write: (...change) => written.push(change), refuseWired: () => false },
  view: { squares: { isUsable: (number) => number <= 9, say: () => {} } },
  board: { beginning: () => null, before: 0 },
  takes: { known: () => [[1, {}]], make: (number) => written.push(["make", number]) },
  run: { events: Array(9).fill({}), done: {}, info: {} },
  before: () => [],
  recording: { items: () => [] },
  live: { run: null, items: () => [] },
};
const actions = new StripActions(strip);
const presses = PRESSES.map(([number, key]) => {
  const before = [messages.length, written.length];
  const isTaken = actions.onKey(number, key);
  return [isTaken, messages.slice(before[0]), written.length - before[1]];
});
console.log(JSON.stringify(presses));
"""


@pytest.fixture(scope="module")
def press(tmp_path_factory):
    """A function that presses keys on squares: whether each was taken, what it said, and how much it wrote."""
    modules = write_modules(tmp_path_factory.mktemp("modules"))
    words = (ROOT / "locales" / "en" / "main.json").read_text(encoding="utf-8")
    program = PROGRAM.replace("WORDS", words)
    return lambda keys: run_node(modules, program.replace("PRESSES", json.dumps(keys)))


def test_key_on_a_locked_square_says_why(press):
    """Catches: a key that does nothing on a locked block, without a word."""
    keys = [".", "t", "d", "w", "n", "c"]
    answers = press([[3, key] for key in keys])
    assert [(is_taken, writes) for is_taken, _, writes in answers] == [(True, 0)] * len(keys)
    assert [["unlock" in message for message in messages] for _, messages, _ in answers] == [[True]] * len(keys)


def test_key_on_a_free_square_is_obeyed(press):
    """Catches: a block behind the lock that counts as locked."""
    keys = [".", "t", "d", "n", "c"]
    assert press([[4, key] for key in keys]) == [[True, [], 1]] * len(keys)


def test_key_of_nothing_is_left_to_the_page(press):
    """Catches: a key of ComfyUI's that is explained, or kept from it."""
    assert press([[3, "x"], [4, "x"], [12, "t"]]) == [[False, [], 0]] * 3
