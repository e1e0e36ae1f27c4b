// Shared by our extensions: elements, the page's language, finding nodes, and a node's output from its newest run.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { fromElsewhere, fromHere } from "./tabs.js";

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
 * or the page is opened again. `run` has the node's `id` in it and the `prompt`; it is undefined if ComfyUI kept the output.
 */
export function onOutput(type, show) {
  shows.set(type, show);
}

const delivered = new WeakSet(); // nodes that show their output

function deliver(node, output, run) {
  const show = output && shows.get(node?.comfyClass);
  if (!show) return;
  delivered.add(node);
  show(node, output, run);
}

/** Which prompt Pocket Models shows in place of the one typed, where ComfyUI shows what a node says during a run. */
onOutput("SDVGPocketModels", ({ id }, { sdvg_shown: told }, run) => {
  if (told) api.dispatchCustomEvent("progress_text", { nodeId: String(run?.id ?? id), text: told[0] });
});

function settings(prompt) {
  return JSON.stringify(Object.entries(prompt).map(([id, { class_type, inputs }]) => [id, class_type, inputs]));
}

let past; // the runs that the server remembered when the page was opened

/** A run that was sent NaN or Infinity stays in ComfyUI's history as Python writes it, which is no JSON. */
async function readHistory() {
  const answer = await api.fetchApi("/history?max_items=16");
  const text = (await answer.text()).replace(/("(?:[^"\\]|\\.)*")|-?(?:NaN|Infinity)/g, (_, string) => string ?? "null");
  return JSON.parse(text);
}

/** Show again what our nodes output in the newest of those runs of the open workflow, as it is now. */
async function recall() {
  const workflow = rootGraph()?.id;
  if (workflow === NAMELESS) return;
  past ??= readHistory().catch((error) => {
    past = undefined; // the next time it is asked again
    throw error;
  });
  const [history, { output: now }] = await Promise.all([past, app.graphToPrompt()]);
  const isOurs = ([id, { prompt }]) =>
    prompt?.[3]?.extra_pnginfo?.workflow?.id === workflow && (fromHere(id) || settings(prompt[2]) === settings(now));
  const entries = Object.entries(history).filter(isOurs);
  const [prompt_id, { outputs }] = entries.at(-1) ?? ["", { outputs: {} }];
  if (workflow !== rootGraph()?.id) return; // another one was opened in the meantime
  for (const [node, output] of Object.entries(outputs)) {
    if (shows.has(nodeOf(node)?.comfyClass) && !delivered.has(nodeOf(node))) api.dispatchCustomEvent("executed", { node, display_node: node, output, prompt_id });
  }
}

app.registerExtension({
  name: "sdvg.outputs",
  setup() {
    api.addEventListener("executed", ({ detail }) => {
      if (fromElsewhere(detail.prompt_id)) return;
      const id = detail.display_node ?? detail.node;
      deliver(nodeOf(id), detail.output, { id, prompt: detail.prompt_id });
    });
  },
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) deliver(nodeOf(id), output);
  },
  afterConfigureGraph() {
    // Nodes are made anew with every step undone, and a page that opens may make them twice.
    if (![...allNodes()].some((node) => shows.has(node.comfyClass) && !delivered.has(node))) return;
    recall().catch((error) => console.warn("SDVG: the server's history cannot be read", error));
  },
});
