// Shared by our extensions: elements, the page's language, finding nodes, and a node's output from its newest run.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { fromElsewhere } from "./tabs.js";

export const PREFIX = "SDVG"; // of our nodes' types
export const NAMELESS = "00000000-0000-0000-0000-000000000000"; // of every workflow made by clearing the canvas in an older page

export function make(tag, className, text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export function locale() {
  return String(app.extensionManager?.setting?.get("Comfy.Locale")).startsWith("zh") ? "zh" : "en";
}

export function rootGraph() {
  return app.rootGraph ?? app.graph;
}

/** All nodes of the open workflow, including those in subgraphs. */
export function* allNodes(graph = rootGraph()) {
  for (const node of graph?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* allNodes(node.subgraph);
  }
}

/**
 * A node of the open workflow, or undefined. A node in a subgraph has two ids: in a run its path, such as "5:12", and in the
 * outputs that ComfyUI keeps "<uuid of the subgraph>:12".
 */
export function nodeOf(id) {
  const parts = String(id).split(":");
  let graph = rootGraph();
  let node;
  for (const part of parts) {
    node = graph?.getNodeById(part);
    graph = node?.subgraph ?? rootGraph()?.subgraphs?.get(part);
  }
  return node;
}

/** Change a widget as a hand would, as one step that can be undone. */
export function setWidget(node, widget, value) {
  setWidgets([[node, widget, value]]);
}

/** Change several, `[node, widget, value]`, as one such step. */
export function setWidgets(changes) {
  const { canvas } = app;
  canvas.emitBeforeChange?.();
  try {
    for (const [node, widget, value] of changes) {
      const before = widget.value;
      widget.value = value;
      widget.callback?.(value, canvas, node);
      node.onWidgetChanged?.(widget.name, value, before, widget);
      node.setDirtyCanvas?.(true, true);
    }
  } finally {
    canvas.emitAfterChange?.();
  }
}

/** Have `act` called after a method or callback of an object, as it was called itself. */
export function after(object, name, act) {
  const before = object[name];
  object[name] = function (...news) {
    const answer = before?.apply(this, news);
    act.apply(this, news);
    return answer;
  };
}

/** The slot of the input that can stand in for a widget; -1 if there is none. */
export function inputSlot(node, name) {
  return node.inputs?.findIndex((input) => input.widget?.name === name) ?? -1;
}

/** True if a widget's value comes through a wire. */
export function isWired(node, name) {
  const slot = inputSlot(node, name);
  return slot >= 0 && node.isInputConnected(slot);
}

/** The node that a sampler's positive comes from, past those that take a positive and hand it on; null: none. */
export function promptNode(node) {
  let one = node;
  for (let steps = 0; steps < 16; steps += 1) {
    const slot = one?.inputs?.findIndex(({ name }) => name === "positive") ?? -1;
    if (slot < 0) return one;
    one = one.isInputConnected(slot) ? one.getInputNode(slot) : null;
  }
  return null;
}

const shows = new Map(); // type of node -> the function that shows its output

/**
 * Call `show(node, output, run)` whenever a node of this type has output: after a run, from the cache, and when its workflow
 * is opened again. `run` has the node's `id` in it and the `prompt`; it is undefined if ComfyUI kept the output.
 */
export function onOutput(type, show) {
  shows.set(type, show);
}

function deliver(node, output, run) {
  if (output) shows.get(node?.comfyClass)?.(node, output, run);
}

const lines = new Map(); // node's id -> which prompt Pocket Models shows in place of the one typed

/** Show it where ComfyUI shows what a node says during a run. */
function sayLines() {
  for (const [nodeId, text] of lines) api.dispatchCustomEvent("progress_text", { nodeId, text });
}

onOutput("SDVGPocketModels", ({ id }, { sdvg_shown: told }, run) => {
  if (told) lines.set(String(run?.id ?? id), told[0]);
  sayLines();
});

app.registerExtension({
  name: "sdvg.outputs",
  setup() {
    api.addEventListener("executed", ({ detail }) => {
      if (fromElsewhere(detail.prompt_id)) return;
      const id = detail.display_node ?? detail.node;
      deliver(nodeOf(id), detail.output, { id, prompt: detail.prompt_id });
    });
    api.addEventListener("execution_start", () => lines.clear());
    api.addEventListener("execution_success", () => setTimeout(sayLines)); // newer pages take the line away as a run ends
  },
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) deliver(nodeOf(id), output);
  },
});
