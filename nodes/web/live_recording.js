// The recording of a live session in the graph that it was queued from: what stood there then, and writing it.
import {
  fromHere,
  isLinked,
  isWired,
  seedControl,
  setWidgets,
  tabName,
  widgetOf,
} from "./frontend.js";
import { escapeChoices, withBareFirst } from "./live_text.js";
import { asOneStepWithHeights } from "./measured_step.js";
import { recordedSoFar } from "./runs.js";
import { text } from "./words.js";

const QUEUED = "sdvg.live"; // where the page finds it again after it was loaded anew
const MOST = 8; // sessions
/** @type {("seed" | "takes" | "blocks")[]} */
const WRITTEN = ["seed", "takes", "blocks"];
// Of the sampler's other inputs those that the film depends on.
const OF_FILM = [
  "prompt",
  "width",
  "height",
  "schedule",
  "drafter_schedule",
  "target_schedule",
  "drafter_context",
];
const OF_BLOCKS = [
  "draft_steps",
  "colour_hold",
  "directions",
  "kept_blocks",
  "until_block",
  "tae_kind",
  "kv_dtype",
];

/**
 * What stood in the graph as a session was queued. `tab`: where it was. `seed`: null if it moves from run to run by itself.
 * `soFar`: what its blocks recorded, which this tab keeps in case the server goes.
 * @typedef {{ tab: string, node: string, source: string, prompt: string, seed: string | null, takes: string, blocks: string, others: string, soFar?: LiveRecording }} Queued
 */

/** @type {Queued[]} */
let queueing = []; // until the server has named the prompt

/** @returns {[string, Queued[]][]} */
function allQueued() {
  return JSON.parse(sessionStorage.getItem(QUEUED) ?? "[]");
}

/** @param {[string, Queued[]][]} all */
function keepQueued(all) {
  sessionStorage.setItem(QUEUED, JSON.stringify(all.slice(-MOST)));
}

/**
 * A prompt is about to be queued: note what the nodes of the sessions in it hold.
 * @param {import("./node_inputs.js").NodeInputs[]} samplers
 */
export function noteQueued(samplers) {
  const live = samplers.filter(({ isLive }) => isLive);
  queueing = live.map((inputs) => ({
    tab: tabName(),
    node: String(inputs.node.id),
    ...valuesOf(inputs),
  }));
}

/**
 * The server has taken the prompt.
 * @param {string | undefined} prompt
 */
export function nameQueued(prompt) {
  if (prompt && queueing.length) keepQueued([...allQueued(), [prompt, queueing]]);
  queueing = [];
}

/**
 * What a node held as this tab queued a prompt, once; null: nobody knows, or it was asked before. A copy of the tab has it too.
 * @param {string | undefined} prompt
 * @param {GraphNode} node
 */
export function takeQueued(prompt, node) {
  const all = allQueued();
  const nodes = all.find(([other]) => other === prompt)?.[1] ?? [];
  const queued = nodes.find((other) => other.node === String(node.id));
  if (queued?.tab !== tabName()) return null;
  const others = nodes.filter((other) => other !== queued);
  keepQueued(all.map(([name, of]) => (name === prompt ? [name, others] : [name, of])));
  return queued;
}

/**
 * Keep what a session that was queued here has recorded so far.
 * @param {Run} run
 */
export function keepSoFar({ info, events }) {
  const soFar = recordedSoFar(events);
  const all = allQueued();
  const nodes = all.find(([prompt]) => prompt === info.prompt)?.[1];
  const queued = nodes?.find(({ node }) => node === info.node.split(":").at(-1)); // before it, the subgraph's
  if (!soFar || !queued) return;
  queued.soFar = soFar;
  keepQueued(all);
}

/** Whether this tab waits for the end of a session that has made something. */
export function awaitsRecording() {
  return allQueued().some(([, nodes]) => nodes.some(({ soFar }) => soFar));
}

/**
 * What a node held as this tab queued a session that the server no longer knows, with what was recorded; once.
 * @param {(string | undefined)[]} known prompts that the server knows of
 * @param {GraphNode} node
 */
export function takeLost(known, node) {
  const id = String(node.id);
  const lost = allQueued().filter(([prompt]) => fromHere(prompt) && !known.includes(prompt));
  const [prompt] = lost.find(([, nodes]) => nodes.some((of) => of.soFar && of.node === id)) ?? [];
  return prompt ? takeQueued(prompt, node) : null;
}

/** @param {import("./node_inputs.js").NodeInputs} inputs */
function valuesOf(inputs) {
  const source = inputs.promptSource();
  return {
    source: String(source?.node.id ?? ""),
    prompt: String(source?.widget.value ?? ""),
    seed: seedControl(inputs.node) ? null : inputs.read("seed"),
    takes: inputs.read("takes"),
    blocks: inputs.read("blocks"),
    others: JSON.stringify([...OF_FILM, ...OF_BLOCKS].map((name) => inputs.read(name))),
  };
}

/**
 * Why a recording must not be written into the graph; empty if it may.
 * @param {import("./node_inputs.js").NodeInputs} inputs
 * @param {Queued} queued
 */
export function recordingProblem(inputs, queued) {
  const { node } = inputs;
  if (isLinked(node, ({ name }) => name === "prompt_schedule")) return text("live.scheduled");
  if (!inputs.promptSource()) return text("live.textElsewhere");
  const wired = ["live", ...WRITTEN].find((name) => isWired(node, name));
  if (wired) return text("live.givenElsewhere", { name: wired });
  const now = valuesOf(inputs);
  const isSame =
    now.source === queued.source &&
    now.prompt === queued.prompt &&
    now.takes === queued.takes &&
    now.blocks === queued.blocks &&
    now.others === queued.others &&
    (queued.seed === null || now.seed === queued.seed);
  return isSame ? "" : text("live.changed");
}

/**
 * The prompt of a recording, as it is written in the graph.
 * @param {LiveRecording} recording
 */
export function textOf({ text: prompt }) {
  return escapeChoices(withBareFirst(prompt));
}

/**
 * Whether the graph holds a recording: the next run makes it again.
 * @param {import("./node_inputs.js").NodeInputs} inputs
 * @param {LiveRecording} recording
 */
export function holdsRecording(inputs, recording) {
  const isHeld = WRITTEN.every((name) => inputs.read(name) === String(recording[name]));
  const prompt = inputs.promptSource()?.widget.value;
  return isHeld && prompt === textOf(recording) && !inputs.isLive;
}

/**
 * Write a recording, as one step that can be undone: with the words all that the cards of the shots show follows.
 * @param {import("./node_inputs.js").NodeInputs} inputs
 * @param {LiveRecording} recording
 */
export function writeRecording(inputs, recording) {
  const { node } = inputs;
  const source = inputs.promptSource();
  if (!source) return;
  /** @type {[GraphNode, Widget, unknown][]} */
  const changes = [[source.node, source.widget, textOf(recording)]];
  const control = seedControl(node);
  if (control) changes.push([node, control, "fixed"]);
  /** @type {Record<string, unknown>} */
  const values = { live: false, ...recording };
  for (const name of ["live", ...WRITTEN]) {
    const widget = widgetOf(node, name);
    if (widget) changes.push([node, widget, values[name]]);
  }
  asOneStepWithHeights(() => setWidgets(changes)); // the cards open, and the node grows
  inputs.noteShared(source.node);
}
