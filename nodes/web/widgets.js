// The widgets of our nodes. What stands in front: a list of prompts to try on Pocket Models. ComfyUI's canvas shows advanced inputs too
// unless their widgets say so themselves, and the sampler's box for the prompt is of use only if nothing upstream carries the prompt's
// text. What is hidden is saved and sent.
import { after } from "./dom.js";
import {
  PREFIX,
  SAMPLER,
  allNodes,
  drawsNodes,
  isWired,
  onRenderer,
  promptNode,
  register,
  setWidgets,
  toast,
  widgetOf,
  wiredNames,
} from "./frontend.js";
import { text } from "./words.js";

const WITH_TEXT = ["SDVGPrompt", "SDVGPocketModels"];

/**
 * For the canvas, and for Nodes 2.0.
 * @param {Widget} widget
 * @param {boolean} hidden
 */
function hide(widget, hidden) {
  widget.hidden = hidden;
  widget.options.hidden = hidden;
}

/** @param {GraphNode} node */
function tidy(node) {
  const wired = wiredNames(node);
  const hides = !drawsNodes() && !node.showAdvanced;
  for (const widget of node.widgets ?? []) {
    if (!widget.options?.advanced || widget.name.includes(".")) continue; // those of a chosen option
    widget.advanced = true; // the node's menu offers to show them
    widget.hidden = hides && !wired.has(widget.name);
  }
  const prompt = widgetOf(node, "prompt");
  if (!prompt || node.comfyClass !== SAMPLER) return;
  const source = promptNode(node)?.comfyClass ?? "";
  hide(prompt, WITH_TEXT.includes(source) && !String(prompt.value).trim());
}

/**
 * A list whose choice is written into the prompt; it is neither saved nor sent.
 * @param {GraphNode} node
 */
function offerExamples(node) {
  const prompt = widgetOf(node, "prompt");
  const values = node.constructor.nodeData?.input?.required?.prompt?.[1]?.sdvg_examples;
  if (!prompt || !values) return;
  /** @param {unknown} chosen */
  const choose = (chosen) => setWidgets([[node, prompt, chosen]]);
  const options = { values, serialize: false };
  const list = node.addWidget("combo", "examples", values[0], choose, options);
  list.label = text("examples");
  list.serialize = false;
}

/** @param {GraphNode} node */
function fitHeight(node) {
  node.setSize([node.size[0], node.computeSize()[1]]);
}

/** @param {GraphNode} node */
function addFront(node) {
  offerExamples(node);
  for (const name of ["onConnectionsChange", "onConfigure", "toggleAdvanced"])
    after(node, name, () => tidy(node));
  after(node, "toggleAdvanced", () => node.expandToFitContent?.());
  tidy(node);
  if (!drawsNodes()) fitHeight(node); // Nodes 2.0 measures by itself
}

// --- the widgets of a chosen option, such as policy.tau, which ComfyUI makes anew with every choice

// A preset always starts with its own numbers, and all of the target's steps; presets alone have one of the first two of these.
const BLOCKS = ["policy.target_at", "policy.target_blocks"];
const OF_PRESETS = [...BLOCKS, "policy.handover_steps", "policy.target_steps"];
// Below the usual range every draft is accepted, above it hardly any. The server takes the whole, as saved workflows may have it.
const RANGE = { usual: { min: -2.5, max: 0.5 }, whole: { min: -3, max: 3 } };

/** @param {GraphNode} node */
function nested(node) {
  return (node.widgets ?? []).filter((widget) => widget.name.includes("."));
}

/**
 * @param {GraphNode} node
 * @param {Widget} widget
 */
function isOfPreset(node, widget) {
  return OF_PRESETS.includes(widget.name) && BLOCKS.some((name) => widgetOf(node, name));
}

/**
 * Where a widget's value is kept: by its option and its name.
 * @param {GraphNode} node
 * @param {Widget} widget
 */
function placeOf(node, widget) {
  const [name] = widget.name.split(".");
  return `${widgetOf(node, name)?.value} ${widget.name}`;
}

/**
 * Adjust the widgets of the option that is chosen; keep their values when they go.
 * @param {GraphNode} node
 * @param {Map<string, unknown>} kept
 */
function tend(node, kept) {
  for (const widget of nested(node)) {
    // ComfyUI writes English tooltips on them, and prefers these to the translations that it looks up for all other widgets.
    widget.tooltip = undefined;
    if (widget.name === "policy.tau") setRange(widget);
    if (!isOfPreset(node, widget)) keepWhenGone(widget, placeOf(node, widget), kept);
  }
  showQuantile(node);
}

/** @type {WeakSet<Widget>} */
const heard = new WeakSet(); // whose changes are noticed

/**
 * The quantile acts with one score of a block alone. What is hidden is saved and sent as before.
 * @param {GraphNode} node
 */
function showQuantile(node) {
  const chosen = widgetOf(node, "policy.aggregation");
  const quantile = widgetOf(node, "policy.quantile");
  if (!chosen || !quantile) return;
  if (!heard.has(chosen)) {
    heard.add(chosen);
    after(chosen, "callback", () => showQuantile(node));
  }
  const wired = [chosen, quantile].some(({ name }) => isWired(node, name));
  hide(quantile, chosen.value !== "quantile" && !wired);
  const [width, height] = node.size;
  node.setSize([width, Math.max(height, node.computeSize()[1])]);
}

/** @type {WeakSet<Widget>} */
const followed = new WeakSet(); // whose end is noticed

/**
 * @param {Widget} widget
 * @param {string} place
 * @param {Map<string, unknown>} kept
 */
function keepWhenGone(widget, place, kept) {
  if (followed.has(widget)) return;
  followed.add(widget);
  after(widget, "onRemove", () => kept.set(place, widget.value));
}

/**
 * A value beyond the usual range gets the whole, or the page would move it.
 * @param {Widget} widget
 */
function setRange(widget) {
  const { min, max } = RANGE.usual;
  const value = Number(widget.value);
  Object.assign(widget.options, value >= min && value <= max ? RANGE.usual : RANGE.whole);
}

/**
 * A preset that is chosen has its own numbers, though newer pages remember what each option had.
 * @param {GraphNode} node
 */
function resetPreset(node) {
  for (const widget of nested(node))
    if (isOfPreset(node, widget)) widget.value = defaultOf(node, widget) ?? widget.value;
}

/**
 * @param {GraphNode} node
 * @param {Widget} widget
 * @returns {unknown}
 */
function defaultOf(node, widget) {
  const [name, inner] = widget.name.split(".");
  const { required = {}, optional = {} } = node.constructor.nodeData?.input ?? {};
  const [kind, settings] = { ...required, ...optional }[name] ?? [];
  const { options = [] } = settings ?? {};
  if (!inner)
    return settings?.default ?? options[0]?.key ?? (Array.isArray(kind) ? kind[0] : undefined);
  const chosen = widgetOf(node, name)?.value;
  const inputs = options.find(({ key }) => key === chosen)?.inputs ?? {};
  return { ...inputs.required, ...inputs.optional }[inner]?.[1]?.default;
}

/**
 * @param {GraphNode} node
 * @param {Map<string, unknown>} kept
 */
function restore(node, kept) {
  for (const widget of nested(node)) {
    const place = placeOf(node, widget);
    if (!kept.has(place)) continue;
    widget.value = kept.get(place);
    kept.delete(place); // from here on the widget's own changes count
  }
}

/**
 * Put back what a saved workflow left in a widget of another kind: a route that this version lacks has other inputs.
 * @param {GraphNode} node
 */
function resetWrong(node) {
  const wrong = (node.widgets ?? []).filter((widget) => isWrong(node, widget));
  for (const widget of wrong) widget.value = defaultOf(node, widget);
  const names = wrong.map(({ name }) => name).join(", ");
  if (names) toast("warn", text("reset"), text("resetDetail", { names }));
}

/**
 * @param {GraphNode} node
 * @param {Widget} widget
 */
function isWrong(node, widget) {
  const usual = defaultOf(node, widget);
  const { values } = widget.options ?? {};
  if (widget.name === "policy" && Array.isArray(values))
    return !values.includes(String(widget.value));
  return ["number", "boolean"].includes(typeof usual) && typeof widget.value !== typeof usual;
}

/** @param {GraphNode} node */
function follow(node) {
  /** @type {Map<string, unknown>} */
  const kept = new Map();
  const policy = () => widgetOf(node, "policy")?.value;
  let last = policy();
  for (const widget of node.widgets ?? []) {
    if (widget.name.includes(".")) continue;
    after(widget, "callback", () => {
      if (policy() !== last) resetPreset(node);
      last = policy();
      restore(node, kept);
      tend(node, kept);
    });
  }
  after(node, "onConfigure", () => {
    last = policy();
    resetWrong(node);
    tend(node, kept);
  });
  tend(node, kept);
}

// --- the routes (policies): six in front, the others behind them, each with what it does; values stay as they are saved

const FRONT = ["fast", "balanced", "careful", "reward", "hybrid", "budget"];
const ROUTES = [...FRONT, "first", "at", "stride", "always-target", "refine"];

/** @param {string | null} [value] */
function label(value) {
  return ROUTES.includes(value ?? "") ? text(`policy.${value}`) : String(value ?? "");
}

/** @param {GraphNode} node */
function sayPolicies(node) {
  const options = node.comfyClass === "SDVGQualityRouter" && widgetOf(node, "policy")?.options;
  if (!options || !Array.isArray(options.values)) return;
  const { values } = options;
  const behind = values.filter((value) => !FRONT.includes(value));
  options.values = [...FRONT.filter((value) => values.includes(value)), ...behind];
  options.getOptionLabel = label;
}

/** @param {GraphNode} node */
function isOurs(node) {
  return Boolean(node.comfyClass?.startsWith(PREFIX));
}

function tidyAll() {
  for (const node of allNodes()) if (isOurs(node)) tidy(node);
}

register({
  name: "sdvg.widgets",
  setup() {
    onRenderer(tidyAll);
  },
  nodeCreated(node) {
    if (!isOurs(node)) return;
    addFront(node);
    follow(node);
    sayPolicies(node);
  },
  afterConfigureGraph: tidyAll,
});
