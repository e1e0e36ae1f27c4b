// Every call into ComfyUI's page: its canvas and Nodes 2.0, tabs, queue, settings and messages. Nothing else imports its scripts.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { after } from "./dom.js";

export const PREFIX = "SDVG"; // of our nodes' types
export const SAMPLER = "SDVGSpeculativeSampler";
// Of every workflow made by clearing the canvas in an older page.
export const NAMELESS = "00000000-0000-0000-0000-000000000000";

// --- the page

/** @param {Extension} extension */
export function register(extension) {
  app.registerExtension(extension);
}

/**
 * Hear an event of the server or of the page.
 * @param {string} name
 * @param {(detail: any) => void} act
 */
export function listen(name, act) {
  api.addEventListener(name, ({ detail }) => act(detail));
}

/**
 * Ask one of our routes.
 * @param {string} path
 * @param {RequestInit} [options]
 */
export function askServer(path, options) {
  return api.fetchApi(path, options);
}

/** The words of all packs. */
export function fetchWords() {
  return api.getCustomNodesI18n();
}

/** @param {string} id */
export function setting(id) {
  return app.extensionManager?.setting?.get(id);
}

export function language() {
  return String(setting("Comfy.Locale")).startsWith("zh") ? "zh" : "en";
}

/**
 * Show a message for some seconds.
 * @param {string} severity
 * @param {string} summary
 * @param {string} detail
 * @param {number} [life]
 */
export function toast(severity, summary, detail, life) {
  app.extensionManager?.toast.add({ severity, summary, detail, life });
}

/** Whether Nodes 2.0 draws the nodes, which measures their parts by itself. */
export function drawsNodes() {
  return Boolean(window.LiteGraph.vueNodesMode);
}

/**
 * Hear that the other renderer draws the nodes from now on.
 * @param {() => void} act
 */
export function onRenderer(act) {
  const { settings } = app.ui;
  settings.addEventListener("Comfy.VueNodes.Enabled.change", () => setTimeout(act));
}

/** @param {WheelEvent} event */
export function zoomCanvas(event) {
  app.canvas.processMouseWheel?.(event);
}

// --- the open workflow

export function rootGraph() {
  return app.rootGraph ?? app.graph;
}

/**
 * All nodes of the open workflow, including those in subgraphs.
 * @param {Graph | undefined} [graph]
 * @returns {Generator<GraphNode>}
 */
export function* allNodes(graph = rootGraph()) {
  for (const node of graph?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* allNodes(node.subgraph);
  }
}

/**
 * A node of the open workflow, or undefined. A node in a subgraph has two ids: in a run its path, such as "5:12", and in the
 * outputs that ComfyUI keeps "<uuid of the subgraph>:12".
 * @param {string | number} id
 */
export function nodeOf(id) {
  let graph = rootGraph();
  let node;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(part);
    graph = node?.subgraph ?? rootGraph()?.subgraphs?.get(part);
  }
  return node;
}

/**
 * The node of the open workflow that holds a subgraph; undefined at the root.
 * @param {Graph | undefined} graph
 */
function holderOf(graph) {
  return [...allNodes()].find(({ subgraph }) => subgraph && subgraph === graph);
}

/**
 * Change widgets as a hand would, as one step that can be undone. A widget that only a change before it makes is given by its name.
 * @param {[GraphNode, Widget | string, unknown][]} changes
 */
export function setWidgets(changes) {
  asOneStep(() => {
    for (const [node, given, value] of changes) {
      const widget = typeof given === "string" ? widgetOf(node, given) : given;
      if (!widget) continue;
      const before = widget.value;
      widget.value = value;
      widget.callback?.(value, app.canvas, node);
      node.onWidgetChanged?.(widget.name, value, before, widget);
      node.setDirtyCanvas?.(true, true);
    }
  });
}

/**
 * Change the graph by one step that can be undone.
 * @param {() => void} change
 */
export function asOneStep(change) {
  const { canvas } = app;
  canvas.emitBeforeChange?.();
  try {
    change();
  } finally {
    canvas.emitAfterChange?.();
  }
}

/**
 * @param {GraphNode} node
 * @param {string} name
 * @returns {Widget | undefined}
 */
export function widgetOf(node, name) {
  return node.widgets?.find((widget) => widget.name === name);
}

/**
 * Whether a widget's value comes through a wire.
 * @param {GraphNode} node
 * @param {string} name
 */
export function isWired(node, name) {
  return isLinked(node, (slot) => slot.widget?.name === name);
}

/**
 * The widgets of a node whose values come through wires.
 * @param {GraphNode} node
 */
export function wiredNames(node) {
  const wired = (node.inputs ?? []).filter(
    (input, slot) => input.widget && node.isInputConnected(slot),
  );
  return new Set(wired.map(({ widget }) => widget?.name));
}

/**
 * Whether a wire ends at an input of this kind.
 * @param {GraphNode} node
 * @param {(slot: Slot) => boolean} isIt
 */
export function isLinked(node, isIt) {
  return Boolean(node.inputs?.some((input, slot) => isIt(input) && node.isInputConnected(slot)));
}

/**
 * The link that ends at an input. A subgraph's node answers `getInputLink`, and in newer pages `getInputNode` too, for what
 * comes out of it, so any node is asked as an ordinary one.
 * @param {GraphNode} node
 * @param {number} slot
 */
function linkInto(node, slot) {
  return window.LiteGraph.LGraphNode.prototype.getInputLink.call(node, slot);
}

/**
 * The node at the other end of an input's wire, out of the subgraph too; null: none.
 * @param {GraphNode} node
 * @param {string} name
 * @returns {GraphNode | null}
 */
export function sourceOf(node, name) {
  const slot = node.inputs?.findIndex((input) => (input.widget?.name ?? input.name) === name) ?? -1;
  if (!node.graph || slot < 0) return null;
  const { outputNode, subgraphInput } = linkInto(node, slot)?.resolve(node.graph) ?? {};
  const holder = subgraphInput && holderOf(node.graph);
  return holder ? sourceOf(holder, subgraphInput.name) : (outputNode ?? null);
}

/**
 * The node that a sampler's positive comes from, past those that take a positive and hand it on; null: none.
 * @param {GraphNode} node
 */
export function promptNode(node) {
  /** @type {GraphNode | null} */
  let source = node;
  for (let steps = 0; steps < 16 && source; steps += 1) {
    if (!source.inputs?.some(({ name }) => name === "positive")) return source;
    source = sourceOf(source, "positive");
  }
  return null;
}

/**
 * The samplers of the open workflow whose positive comes from a node.
 * @param {GraphNode} node
 */
export function samplersOf(node) {
  return [...allNodes()].filter(
    (other) => other.comfyClass === SAMPLER && promptNode(other) === node,
  );
}

/** What names this tab of the browser: the same as the page is loaded anew, and another one in a copy of the tab, unlike what it keeps. */
export function tabName() {
  return window.name;
}

// --- which tabs of the page a run belongs to; node ids do not tell: every copy of a template has the same

const QUEUED = "sdvg.queued"; // where the page finds it again after it was loaded anew
const MOST = 64;

/** @type {Map<string, Set<Workflow | undefined>>} */
const tabs = new Map(); // prompt -> the workflows that it belongs to

export function openWorkflow() {
  return app.extensionManager?.workflow?.activeWorkflow;
}

/** Whether no workflow is open yet: what changes in one now is no step that can be undone. */
export function isOpening() {
  const open = openWorkflow();
  return !open || Boolean(open.changeTracker?.constructor.isLoadingGraph);
}

/** @returns {Map<string, string>} */
function paths() {
  return new Map(JSON.parse(sessionStorage.getItem(QUEUED) ?? "[]"));
}

/**
 * Whether a prompt was queued from the workflow that is open, or was found to be its own.
 * @param {string | undefined} prompt
 */
export function fromHere(prompt) {
  const open = openWorkflow();
  if (!prompt || !open) return false;
  return tabs.get(prompt)?.has(open) ?? paths().get(prompt) === open.path;
}

/**
 * Whether it is another one's.
 * @param {string} prompt
 */
export function fromElsewhere(prompt) {
  return tabs.has(prompt) && !fromHere(prompt);
}

/**
 * @param {string | undefined} prompt
 * @param {Workflow | undefined} [workflow]
 */
export function claim(prompt, workflow = openWorkflow()) {
  if (!prompt) return;
  tabs.set(prompt, (tabs.get(prompt) ?? new Set()).add(workflow));
  const others = [...paths()].filter(([other]) => other !== prompt); // what is claimed again is the newest
  sessionStorage.setItem(
    QUEUED,
    JSON.stringify([...others, [prompt, workflow?.path]].slice(-MOST)),
  );
}

// --- the queue: no event names prompt and tab, or a refusal's errors, so this one call is wrapped

/** @type {((errors: NodeErrors | null, prompt?: string) => void)[]} */
const queueing = [];

/**
 * Call `act(null)` whenever a prompt is about to be queued, and then with what the server refused of it, and with its id if it has one.
 * @param {(errors: NodeErrors | null, prompt?: string) => void} act
 */
export function onQueue(act) {
  queueing.push(act);
}

const { queuePrompt } = api;

/** @this {unknown} @param {Parameters<typeof queuePrompt>} sent */
api.queuePrompt = async function (...sent) {
  const workflow = openWorkflow();
  for (const act of queueing) act(null);
  /** @type {NodeErrors} */
  let refused = {};
  /** @type {string | undefined} */
  let prompt;
  try {
    const answer = await queuePrompt.apply(this, sent);
    refused = answer.node_errors ?? {};
    prompt = answer.prompt_id;
    claim(prompt, workflow);
    return answer;
  } catch (error) {
    refused = /** @type {any} */ (error).response?.node_errors ?? {};
    throw error;
  } finally {
    for (const act of queueing) act(refused, prompt);
  }
};

/** Queue the open workflow, as the page's own button does; whether the server took it. */
export async function queueWorkflow() {
  /** @type {string | undefined} */
  let taken;
  /** @type {Parameters<typeof onQueue>[0]} */
  const hear = (_, prompt) => (taken = prompt);
  onQueue(hear);
  try {
    await app.queuePrompt(0, 1);
  } finally {
    queueing.splice(queueing.indexOf(hear), 1);
  }
  return Boolean(taken);
}

/**
 * Queue a part of a prompt, up to one node.
 * @param {ApiPrompt} output
 * @param {unknown} workflow
 * @param {string} target
 */
export function queuePart(output, workflow, target) {
  return api.queuePrompt(0, { output, workflow }, { partialExecutionTargets: [target] });
}

const CHOICE = /\{[^{}]*\|[^{}]*\}/;

/**
 * Whether ComfyUI draws a widget's text as it queues: one of `{a|b}`.
 * @param {Widget | undefined} widget
 */
export function isDrawn(widget) {
  return Boolean(widget?.serializeValue) && CHOICE.test(String(widget?.value));
}

/** The prompt as it would be queued, but for what is drawn then: that is as it was typed. */
export async function promptNow() {
  const { output, workflow } = await app.graphToPrompt();
  for (const [id, { class_type: type, inputs }] of Object.entries(output)) {
    const widgets = type.startsWith(PREFIX) ? (nodeOf(id)?.widgets ?? []) : [];
    for (const widget of widgets) {
      if (isDrawn(widget) && typeof inputs[widget.name] === "string")
        inputs[widget.name] = widget.value;
    }
  }
  return { output, workflow };
}

/**
 * Whether the seed of a node changes before the next run; where it changes after one, it has changed already.
 * @param {GraphNode} node
 */
export function seedMoves(node) {
  return setting("Comfy.WidgetControlMode") === "before" && Boolean(seedControl(node));
}

/**
 * The widget that moves the seed of a node from run to run; undefined where none does.
 * @param {GraphNode} node
 */
export function seedControl(node) {
  const { widgets = [] } = sourceOf(node, "seed") ?? node;
  const moving = ["increment", "decrement", "randomize"];
  return widgets.find(({ value }) => moving.includes(String(value))); // its name is the page's affair
}

// --- outputs of nodes

/** @type {Map<string, (node: GraphNode, output: NodeOutput, run?: OutputRun) => void>} */
const shows = new Map(); // type of node -> the function that shows its output

/**
 * Call `show(node, output, run)` whenever a node of this type has output: after a run, from the cache, and when its workflow
 * is opened again. `run` has the node's `id` in it and the `prompt`; it is undefined if ComfyUI kept the output.
 * @param {string} type
 * @param {(node: GraphNode, output: NodeOutput, run?: OutputRun) => void} show
 */
export function onOutput(type, show) {
  shows.set(type, show);
}

/**
 * @param {GraphNode | undefined} node
 * @param {NodeOutput} output
 * @param {OutputRun} [run]
 */
function deliver(node, output, run) {
  if (node && output) shows.get(node.comfyClass ?? "")?.(node, output, run);
}

/** @type {Map<string, string>} */
const lines = new Map(); // node's id -> which prompt Pocket Models shows in place of the one typed

/** Show it where ComfyUI shows what a node says during a run. */
function sayLines() {
  for (const [nodeId, text] of lines) api.dispatchCustomEvent("progress_text", { nodeId, text });
}

onOutput("SDVGPocketModels", ({ id }, { sdvg_shown: shown }, run) => {
  if (shown) lines.set(String(run?.id ?? id), shown[0]);
  sayLines();
});

const LINE = "$$node-text-preview"; // ComfyUI's widget for it, which no event names

/**
 * Whether a node shows such a line.
 * @param {GraphNode} node
 */
export function hasLine(node) {
  return widgetOf(node, LINE) !== undefined;
}

register({
  name: "sdvg.outputs",
  setup() {
    listen("executed", (detail) => {
      if (fromElsewhere(detail.prompt_id)) return;
      const id = detail.display_node ?? detail.node;
      deliver(nodeOf(id), detail.output, { id, prompt: detail.prompt_id });
    });
    listen("execution_start", () => lines.clear());
    listen("execution_success", () => setTimeout(sayLines)); // newer pages take the line away as a run ends
  },
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) deliver(nodeOf(id), output);
  },
});

// --- steps that can be undone: loading one must leave the graph as that step has it, or the page takes what differs for an edit

const DYNAMIC = ["COMFY_DYNAMICCOMBO_V3", "COMFY_AUTOGROW_V3"];

/**
 * Whether ComfyUI gives a node the least height of the canvas as its inputs get their values, whatever height was saved.
 * @param {GraphNode} node
 */
function losesHeight(node) {
  const { required = {}, optional = {} } = node.constructor.nodeData?.input ?? {};
  return Object.values({ ...required, ...optional }).some(([kind]) =>
    DYNAMIC.includes(String(kind)),
  );
}

register({
  name: "sdvg.same_height",
  nodeCreated(node) {
    if (!losesHeight(node)) return;
    after(node, "onConfigure", (/** @type {SavedNode} */ { size }) => {
      if (size) node.setSize([...size]);
    });
  },
});
