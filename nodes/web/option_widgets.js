// The widgets of a chosen option, such as policy.tau, which ComfyUI makes anew with every choice: their tooltips, their values
// when an option is chosen again, the range of tau's slider, and the quantile, which is hidden where it does not act.
import { app } from "../../scripts/app.js";
import { PREFIX, inputSlot } from "./common.js";

// A preset always starts with its own numbers.
const OF_PRESETS = ["policy.target_blocks", "policy.handover_steps"];
// How many values a loader with the preset "custom" had first, before those of its newest inputs.
const OLD_CUSTOM = 10;
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
    const { callback } = chosen;
    chosen.callback = function (...news) {
      const answer = callback?.apply(this, news);
      showQuantile(node);
      return answer;
    };
  }
  const wired = [chosen.name, quantile.name].some((name) => node.inputs?.[inputSlot(node, name)]?.link != null);
  // As ComfyUI's own nodes hide one: the first is for the canvas, the other for Nodes 2.0.
  quantile.hidden = quantile.options.hidden = chosen.value !== "quantile" && !wired;
  const { size: [width, height] } = node;
  node.setSize([width, Math.max(height, node.computeSize()[1])]);
}

const followed = new WeakSet(); // widgets whose end is noticed

function keepWhenGone(widget, place, kept) {
  if (followed.has(widget)) return;
  followed.add(widget);
  const { onRemove } = widget;
  widget.onRemove = function (...news) {
    kept.set(place, widget.value);
    return onRemove?.apply(this, news);
  };
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

/** A loader as saved before that had its newest inputs: values are saved by their place alone. */
function makeRoom(node, { widgets_values: values }) {
  const newest = node.widgets?.find(({ name }) => name === "new_prompt");
  if (newest && values && !newest.options.values.includes(values.at(-1))) newest.value = "keep"; // as it was then
  if (values?.[2] !== "custom" || typeof values[OLD_CUSTOM] !== "string") return; // where a switch is now, `weights` was
  const later = node.widgets.slice(OLD_CUSTOM).filter(({ name }) => name.startsWith("preset."));
  const all = [...values.slice(0, OLD_CUSTOM), ...later.map((widget) => defaultOf(node, widget)), ...values.slice(OLD_CUSTOM)];
  for (const [place, widget] of [...node.widgets].entries()) if (place >= OLD_CUSTOM && all[place] !== undefined) widget.value = all[place];
}

function follow(node) {
  if (!node.comfyClass?.startsWith(PREFIX)) return;
  const kept = new Map();
  const policy = () => node.widgets?.find(({ name }) => name === "policy")?.value;
  let last = policy();
  for (const widget of node.widgets ?? []) {
    if (widget.name.includes(".")) continue;
    const { callback } = widget;
    widget.callback = function (...news) {
      const answer = callback?.apply(this, news);
      if (policy() !== last) resetPreset(node);
      last = policy();
      restore(node, kept);
      tend(node, kept);
      return answer;
    };
  }
  const { onConfigure } = node;
  node.onConfigure = function (...news) {
    const answer = onConfigure?.apply(this, news);
    makeRoom(node, news[0]);
    last = policy();
    tend(node, kept);
    return answer;
  };
  tend(node, kept);
}

app.registerExtension({ name: "sdvg.option_widgets", nodeCreated: follow });
