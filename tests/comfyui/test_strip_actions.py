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


TAKES = """
const { api } = await import("../../scripts/api.js");
const queued = [];
api.queuePrompt = async () => {
  queued.push(`prompt ${queued.length}`);
  if (queued.length === 3) sheet.end(); // the page hears of an idle server before it has the answer
  return { prompt_id: queued.at(-1) };
};
const output = { 5: { class_type: "SDVGSpeculativeSampler", inputs: { takes: "", blocks: 9 } } };
globalThis.i18n = { en: {} };
globalThis.sessionStorage = { getItem: () => null, setItem: () => {} };
globalThis.app = { graphToPrompt: async () => ({ output, workflow: {} }) };
const { TakeSheet } = await import("./strip_takes.js");
const now = { directions: "", takes: "", lock: "", shots: [["#0", 1, 9]] };
const strip = {
  node: { id: 5 },
  inputs: { refuseWired: () => false, now: () => now },
  acts: { signature: () => null, askStatus: async () => sheet.end() },
  drawSheet: () => {},
};
const sheet = new TakeSheet(strip);
sheet.known = () => [[1, {}]];
sheet.open = () => {};
await sheet.make(9);
console.log(JSON.stringify([...sheet.making].map(([take, prompt]) => [take, prompt, sheet.over.has(prompt)])));
"""


def test_takes_that_ended_at_once_are_lost(tmp_path):
    """Catches: *being made* for ever, where the server was idle before the page knew what it had queued."""
    seen = run_node(write_modules(tmp_path), TAKES)
    assert seen == [[2, "prompt 0", True], [3, "prompt 1", True], [4, "prompt 2", True]]
