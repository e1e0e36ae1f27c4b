"""What a strip tells of a live session and takes from it, run by node with a strip that only listens."""

import json

import pytest
from comfy_page import run_node, write_modules

pytestmark = pytest.mark.comfyui

PAGE = """
const kept = new Map();
globalThis.sessionStorage = {
  getItem: (key) => kept.get(key) ?? null,
  setItem: (key, value) => kept.set(key, value),
};
globalThis.window = { name: "this tab" };
globalThis.i18n = { en: {} };
const settings = { "sdvg.live.ahead": 2, "sdvg.live.patience": 10 };
globalThis.app = { extensionManager: { setting: { get: (id) => settings[id] } } };
"""


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    """A function that runs a program beside the modules, and returns what it prints."""
    modules = write_modules(tmp_path_factory.mktemp("modules"))
    return lambda program: run_node(modules, PAGE + program)


# Strips that are on or off, seen or not, of pages that began the session or not: what two reports tell the server.
REPORTS = """
const { LiveStrip } = await import("./strip_live.js");
const seen = [];
for (const [isOn, isSeen, isOurs] of CASES) {
  const told = [];
  globalThis.document = { hidden: !isSeen };
  const acts = {
    steer: async (run, { act, at, ahead, patience }) => {
      told.push([act, at, ahead, patience]);
      return {};
    },
  };
  const strip = Object.create(LiveStrip.prototype);
  Object.assign(strip, { strip: { isOn, player: { visible: isSeen }, acts }, isOurs, seen: 1.5 });
  await strip.report({});
  await strip.report({});
  seen.push(told);
}
console.log(JSON.stringify(seen));
"""


def test_hidden_page_tells_of_its_own_session(run_page):
    """Once, so that it waits for a page. Catches: a session begun in a tab that nobody sees, made to its end."""
    cases = [(on, seen, ours) for on in (True, False) for seen in (True, False) for ours in (True, False)]
    found = run_page(REPORTS.replace("CASES", json.dumps(cases)))
    told = ["play", 1.5, 2, 10]
    for (_, seen, ours), reports in zip(cases, found, strict=True):
        assert reports == [told] * (2 if seen else ours)


QUEUED = """
const { nameQueued, noteQueued, takeQueued } = await import("./live_recording.js");
const node = { id: 5, widgets: [] };
const inputs = { node, isLive: true, read: () => "", promptSource: () => undefined };
noteQueued([inputs]);
nameQueued("prompt");
const inTab = (name) => {
  window.name = name;
  return takeQueued("prompt", node)?.node ?? null;
};
console.log(JSON.stringify([inTab("a copy"), inTab(""), inTab("this tab"), inTab("this tab")]));
"""


WIRED = """
const { NodeInputs } = await import("./node_inputs.js");
const recordings = await import("./live_recording.js");
const { holdsRecording, nameQueued, noteQueued, recordingProblem, takeQueued } = recordings;
const widget = { name: "live", value: false };
const seen = [true, false].map((isWired) => {
  const node = { id: 5, widgets: [widget], inputs: [{ widget }], isInputConnected: () => isWired };
  const inputs = new NodeInputs(node, () => null, () => {});
  inputs.promptSource = () => ({ node, widget: { value: "a ball" } });
  inputs.read = () => "1";
  noteQueued([inputs]);
  nameQueued("prompt");
  const queued = takeQueued("prompt", node);
  const recording = { text: "a ball", seed: "1", takes: "1", blocks: "1" };
  return [queued && recordingProblem(inputs, queued), holdsRecording(inputs, recording)];
});
console.log(JSON.stringify(seen));
"""


def test_wired_session_is_offered_as_text(run_page):
    """Catches: a recording that nobody is shown, and *finish* where the next run begins another session."""
    [[problem, is_held], usual] = run_page(WIRED)
    assert "givenElsewhere" in problem
    assert not is_held
    assert usual == [None, True]


def test_copied_tab_writes_no_recording(run_page):
    """Catches: a recording in two graphs, as a copy of a tab has all that the tab keeps."""
    assert run_page(QUEUED) == [None, None, "5", None]
