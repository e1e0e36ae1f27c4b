"""What ComfyUI's page does otherwise since frontend 1.58: our modules, run by node, with doubles of its classes."""

import json

import pytest
from comfy_page import run_node, write_modules

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("modules"))


# A link is asked for at its node, as slots have none; a subgraph's node answers for its outputs instead.
GRAPHS = """
class LGraphNode {
  constructor(graph, comfyClass, inputs = {}) {
    Object.assign(this, { graph, comfyClass, links: Object.values(inputs) });
    this.inputs = Object.keys(inputs).map((name) => ({ name }));
    graph.nodes.push(this);
  }
  isInputConnected(slot) {
    return Boolean(this.links[slot]);
  }
  getInputLink(slot) {
    return this.links[slot] ?? null;
  }
  getInputNode(slot) {
    return this.getInputLink(slot)?.resolve(this.graph).outputNode ?? null;
  }
}
class SubgraphNode extends LGraphNode {
  getInputLink(slot) {
    return this.subgraph.outputs[slot].links[0];
  }
}
const newGraph = () => ({ nodes: [], outputs: [] });
const from = (outputNode) => ({ resolve: () => ({ outputNode }) });
const fromPort = (name) => ({ resolve: () => ({ subgraphInput: { name } }) });
const rootGraph = newGraph();
globalThis.window = { LiteGraph: { LGraphNode } };
globalThis.app = { rootGraph };
"""


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_source_is_found_through_subgraphs(modules, depth):
    """Catches: cards and tau gone in a subgraph, whose node is asked for a link and answers for its output."""
    program = """
    const prompt = new LGraphNode(rootGraph, "SDVGPrompt");
    let graph = rootGraph;
    let link = from(prompt);
    for (let level = 0; level < DEPTH; level += 1) {
      const holder = new SubgraphNode(graph, undefined, { empty: null, text: link });
      graph = newGraph();
      holder.subgraph = graph;
      link = fromPort("text");
    }
    const sampler = new LGraphNode(graph, "SDVGSpeculativeSampler", { positive: link, router: null });
    const { promptNode, samplersOf, sourceOf } = await import("./frontend.js");
    const sources = [promptNode(sampler), sourceOf(sampler, "router"), sourceOf(sampler, "missing")];
    console.log(JSON.stringify([sources.map((node) => node?.comfyClass ?? null), samplersOf(prompt).length]));
    """
    assert run_node(modules, GRAPHS + program.replace("DEPTH", str(depth))) == [["SDVGPrompt", None, None], 1]


# A widget's name, value and options are accessors of its class, so a copy of the widget has none of them.
ROUTER = """
class Widget {
  #parts;
  constructor(parts) {
    this.#parts = parts;
  }
  get name() {
    return this.#parts.name;
  }
  get options() {
    return this.#parts.options;
  }
  get value() {
    return this.#parts.value;
  }
  set value(value) {
    this.#parts.value = value;
  }
}
class Router {
  static nodeData = { input: { required: {
    policy: ["COMFY_DYNAMICCOMBO_V3", { options: [
      { key: "balanced", inputs: { required: {
        blocks: ["INT", { default: 2 }],
        early: ["BOOLEAN", { default: true }],
      } } },
    ] }],
    note: ["STRING", { default: "" }],
  } } };
  comfyClass = "SDVGQualityRouter";
  inputs = [];
  size = [200, 200];
  widgets = [];
  setSize() {}
  computeSize() {
    return [200, 200];
  }
}
const extensions = [];
const messages = [];
globalThis.sessionStorage = { getItem: () => null };
globalThis.window = { LiteGraph: {} };
globalThis.app = {
  registerExtension: (extension) => extensions.push(extension),
  extensionManager: { setting: { get: () => "en" }, toast: { add: ({ summary }) => messages.push(summary) } },
};
await import("./widgets.js");
const router = new Router();
for (const [name, value] of Object.entries(SAVED)) {
  const options = name === "policy" ? { values: ["balanced"] } : {};
  router.widgets.push(new Widget({ name, value, options }));
}
extensions.find(({ name }) => name === "sdvg.widgets").nodeCreated(router);
router.onConfigure({});
const values = router.widgets.map(({ name, value }) => [name, value]);
console.log(JSON.stringify([Object.fromEntries(values), messages.length]));
"""
RIGHT = {"policy": "balanced", "policy.blocks": 5, "policy.early": False, "note": "7"}
WRONG = [
    ({}, 0),
    ({"policy": "newest"}, 1),
    ({"policy.blocks": "min"}, 1),
    ({"policy.blocks": True, "policy.early": 3}, 1),
]
USUAL = {"policy": "balanced", "policy.blocks": 2, "policy.early": True}


@pytest.mark.parametrize(("wrong", "count"), WRONG)
def test_wrong_values_are_reset_and_told(modules, wrong, count):
    """Catches: a choice that this version lacks stays, since a copy of its widget has no list of choices."""
    saved = json.dumps(RIGHT | wrong)
    reset = {name: USUAL[name] for name in wrong}
    assert run_node(modules, ROUTER.replace("SAVED", saved)) == [RIGHT | reset, count]
