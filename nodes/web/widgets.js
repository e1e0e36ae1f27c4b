// The widgets of our nodes. What stands in front: a list of prompts to try on Pocket Models. ComfyUI's canvas shows advanced inputs too
// unless their widgets say so themselves, and the sampler's box for the prompt is of use only if nothing upstream carries the prompt's
// text. What is hidden is saved and sent.
import { app } from "../../scripts/app.js";
import { PREFIX, after, isWired, locale, promptNode, setWidget } from "./common.js";

const WITH_TEXT = ["SDVGPrompt", "SDVGPocketModels"];

function tidy(node) {
  for (const widget of node.widgets ?? []) {
    if (!widget.options?.advanced || widget.name.includes(".")) continue; // those of a chosen option
    widget.advanced = true; // the node's menu offers to show them
    if (!window.LiteGraph.vueNodesMode) widget.hidden = !node.showAdvanced && !isWired(node, widget.name);
  }
  const prompt = node.widgets?.find(({ name }) => name === "prompt");
  if (!prompt || node.comfyClass !== "SDVGSpeculativeSampler") return;
  const told = WITH_TEXT.includes(promptNode(node)?.comfyClass) && !String(prompt.value).trim();
  prompt.hidden = prompt.options.hidden = told; // for the canvas, and for Nodes 2.0
}

/** A list whose choice is written into the prompt; it is neither saved nor sent. */
function offerExamples(node) {
  const prompt = node.widgets?.find(({ name }) => name === "prompt");
  const values = prompt && node.constructor.nodeData?.input?.required?.prompt?.[1]?.sdvg_examples;
  if (!values) return;
  const title = locale() === "zh" ? "选一个示例提示词" : "try a prompt";
  const list = node.addWidget("combo", "examples", values[0], (chosen) => setWidget(node, prompt, chosen), { values, serialize: false });
  list.label = title;
  list.serialize = false;
}

function addFront(node) {
  offerExamples(node);
  for (const name of ["onConnectionsChange", "onConfigure", "toggleAdvanced"]) after(node, name, () => tidy(node));
  after(node, "toggleAdvanced", () => node.expandToFitContent?.());
  tidy(node);
  if (!window.LiteGraph.vueNodesMode) node.setSize([node.size[0], node.computeSize()[1]]); // Nodes 2.0 measures by itself
}

// --- the widgets of a chosen option, such as policy.tau, which ComfyUI makes anew with every choice

// A preset always starts with its own numbers.
const OF_PRESETS = ["policy.target_blocks", "policy.handover_steps"];
// Below the usual range every draft is accepted, above it hardly any. The server takes the whole, as saved workflows may have it.
const RANGE = { usual: { min: -2.5, max: 0.5 }, whole: { min: -3, max: 3 } };

function nested(node) {
  return (node.widgets ?? []).filter((widget) => widget.name.includes("."));
}

/** Where a widget's value is kept: by its option and its name. */
function placeOf(node, widget) {
  const [name] = widget.name.split(".");
  return `${node.widgets.find((one) => one.name === name)?.value} ${widget.name}`;
}

/** Adjust the widgets of the option that is chosen; keep their values when they go. */
function tend(node, kept) {
  for (const widget of nested(node)) {
    // ComfyUI writes English tooltips on them, and prefers these to the translations that it looks up for all other widgets.
    widget.tooltip = undefined;
    if (widget.name === "policy.tau") setRange(widget);
    if (!OF_PRESETS.includes(widget.name)) keepWhenGone(widget, placeOf(node, widget), kept);
  }
  showQuantile(node);
}

const heard = new WeakSet(); // widgets whose changes are noticed

/** The quantile acts with one score of a block alone. What is hidden is saved and sent as before. */
function showQuantile(node) {
  const [chosen, quantile] = ["policy.aggregation", "policy.quantile"].map((name) => node.widgets?.find((one) => one.name === name));
  if (!chosen || !quantile) return;
  if (!heard.has(chosen)) {
    heard.add(chosen);
    after(chosen, "callback", () => showQuantile(node));
  }
  const wired = [chosen.name, quantile.name].some((name) => isWired(node, name));
  // As ComfyUI's own nodes hide one: the first is for the canvas, the other for Nodes 2.0.
  quantile.hidden = quantile.options.hidden = chosen.value !== "quantile" && !wired;
  const { size: [width, height] } = node;
  node.setSize([width, Math.max(height, node.computeSize()[1])]);
}

const followed = new WeakSet(); // widgets whose end is noticed

function keepWhenGone(widget, place, kept) {
  if (followed.has(widget)) return;
  followed.add(widget);
  after(widget, "onRemove", () => kept.set(place, widget.value));
}

/** A value beyond the usual range gets the whole, or the page would move it. */
function setRange(widget) {
  const { min, max } = RANGE.usual;
  Object.assign(widget.options, widget.value >= min && widget.value <= max ? RANGE.usual : RANGE.whole);
}

/** A preset that is chosen has its own numbers, though newer pages remember what each option had. */
function resetPreset(node) {
  for (const widget of nested(node).filter(({ name }) => OF_PRESETS.includes(name))) widget.value = defaultOf(node, widget) ?? widget.value;
}

function defaultOf(node, widget) {
  const [name, inner] = widget.name.split(".");
  const { options = [] } = node.constructor.nodeData?.input?.required?.[name]?.[1] ?? {};
  const chosen = node.widgets.find((one) => one.name === name)?.value;
  const { required, optional } = options.find(({ key }) => key === chosen)?.inputs ?? {};
  return { ...required, ...optional }[inner]?.[1]?.default;
}

function restore(node, kept) {
  for (const widget of nested(node)) {
    const place = placeOf(node, widget);
    if (!kept.has(place)) continue;
    widget.value = kept.get(place);
    kept.delete(place); // from here on the widget's own changes count
  }
}

function follow(node) {
  const kept = new Map();
  const policy = () => node.widgets?.find(({ name }) => name === "policy")?.value;
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
  after(node, "onConfigure", ({ size }) => {
    last = policy();
    tend(node, kept);
    // As the list gets its value, ComfyUI sets the height that its canvas would need; an undo would then be two steps.
    if (window.LiteGraph.vueNodesMode && size) node.setSize([...size]);
  });
  tend(node, kept);
}

// --- the routes (policies): six in front, the others behind them, each with what it does; values stay as they are saved

const FRONT = ["fast", "balanced", "careful", "reward", "hybrid", "budget"];
const WORDS = {
  en: {
    fast: "Fast preview",
    balanced: "Balanced",
    careful: "Careful",
    reward: "Score decides (reward gate)",
    hybrid: "Score decides, faster (hybrid)",
    budget: "Budget",
    more: (name, text) => `${name} (more): ${text}`,
    first: ["First blocks", "the large model makes as many first blocks as you say; with 0, the small model makes all"],
    stride: ["Every nth block", "the large model makes the first block and every nth after it; nothing is scored"],
    "always-target": ["Large model only", "it makes every block"],
  },
  zh: {
    fast: "快速预览",
    balanced: "均衡",
    careful: "细致",
    reward: "得分决定（奖励门控）",
    hybrid: "得分决定，更快（hybrid）",
    budget: "预算",
    more: (name, text) => `${name}（更多）：${text}`,
    first: ["开头几块", "开头几块由大模型生成，块数由你定；设为 0 则全由小模型生成"],
    stride: ["每隔几块", "首块及其后每隔 n 块由大模型生成；不评分"],
    "always-target": ["只用大模型", "每块都由它生成"],
  },
};

function label(value) {
  const words = WORDS[locale()];
  if (!words[value] || value === "more") return String(value ?? "");
  return FRONT.includes(value) ? words[value] : words.more(...words[value]);
}

function sayPolicies(node) {
  const widget = node.comfyClass === "SDVGQualityRouter" && node.widgets?.find(({ name }) => name === "policy");
  if (!Array.isArray(widget?.options?.values)) return;
  const { values } = widget.options;
  widget.options.values = [...FRONT.filter((one) => values.includes(one)), ...values.filter((one) => !FRONT.includes(one))];
  widget.options.getOptionLabel = label;
}

const isOurs = (node) => node.comfyClass?.startsWith(PREFIX);

app.registerExtension({
  name: "sdvg.widgets",
  nodeCreated(node) {
    if (isOurs(node)) [addFront, follow, sayPolicies].forEach((act) => act(node));
  },
  afterConfigureGraph: () => (app.graph?.nodes ?? []).filter(isOurs).forEach(tidy),
});
