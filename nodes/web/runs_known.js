// The strips of the page, the runs that it knows of, and which of them each strip shows.
import { fromElsewhere, fromHere, nodeOf, rootGraph } from "./frontend.js";
import { earlierOf, shownOf, withNewest } from "./runs.js";
import { livesIn } from "./strip_model.js";

/** @typedef {import("./strip.js").Strip} Strip */

/** @type {Map<GraphNode, Strip>} */
export const strips = new Map();
/** @type {Map<string, Run[]>} */
export const runs = new Map(); // workflow and node -> the runs there that this page knows of, oldest first
/** @type {Map<string, Run[]>} */
export const takes = new Map(); // the same -> runs that made takes to compare
/** @type {Map<GraphNode, Signature>} */
export const signatures = new Map(); // sampler -> that of what is set there and upstream
export const server = { isIdle: false }; // it has nothing to do

/**
 * Where a run is kept; null for one without a workflow, such as a script's: its node's id says nothing of any node here.
 * @param {{ workflow: string | null, node: string }} whose
 */
export function keyOf({ workflow, node }) {
  return workflow ? `${workflow} ${node}` : null;
}

/**
 * The key of a node of the open workflow, by its id in a run.
 * @param {string | number} id
 */
export function keyHere(id) {
  return `${rootGraph()?.id} ${id}`;
}

/** @param {string} key */
export function stripOf(key) {
  const [workflow, id] = key.split(" ");
  const node = workflow === rootGraph()?.id ? nodeOf(id) : undefined;
  return node && strips.get(node);
}

/**
 * Whether a run was queued from here, or its settings are those of the node. A live session that goes on is shown by every page that has
 * its node, and no other tab that queued it.
 * @param {Run} run
 * @param {GraphNode} node
 */
export function belongs(run, node) {
  const { info } = run;
  const isLive =
    livesIn(run) && keyOf(info) === keyHere(idOf(node)) && !fromElsewhere(info.prompt ?? "");
  return isLive || fromHere(info.prompt) || hasSettings(info, node);
}

/**
 * @param {RunInfo} info
 * @param {GraphNode} node
 */
function hasSettings({ signature }, node) {
  return Boolean(signature) && signature?.all === signatures.get(node)?.all;
}

/**
 * The id by which the server knows a node.
 * @param {GraphNode} node
 */
export function idOf(node) {
  const ids = [...runs.keys(), ...takes.keys()].map((key) => key.split(" ")[1]);
  return ids.find((id) => nodeOf(id) === node) ?? node.id;
}

/**
 * What a strip's run can be compared with, oldest first: runs that made takes, and others that are over.
 * @param {GraphNode} node
 */
export function othersOf(node) {
  const key = keyHere(idOf(node));
  return [...earlierOf(runs.get(key) ?? [], strips.get(node)?.run), ...(takes.get(key) ?? [])];
}

/**
 * The runs that a strip may show. A copy of a node shows a run of the same workflow with its settings.
 * @param {Strip} strip
 * @param {string} key
 */
function candidates(strip, key) {
  const own = runs.get(key) ?? [];
  const here = [...runs].filter(([other]) => other.startsWith(`${rootGraph()?.id} `));
  const alike = here.flatMap(([, all]) => all).filter(({ info }) => hasSettings(info, strip.node));
  return own.length ? own : alike;
}

/**
 * Have the strip of a key show the newest of its own runs, as it now stands.
 * @param {string} key
 */
export function update(key) {
  const strip = stripOf(key);
  if (!strip) return;
  /** @param {Run} run */
  const isOwn = (run) => run.run === strip.run?.run || belongs(run, strip.node);
  const run = shownOf(candidates(strip, key), isOwn);
  if (run && run !== strip.run) strip.show(run);
  else strip.refresh();
  const sessions = (runs.get(key) ?? []).filter(({ info, done }) => info.live && done);
  for (const session of sessions) if (belongs(session, strip.node)) strip.recording.settle(session);
}

/**
 * A run that makes a take to compare is shown on the sheet of its strip alone.
 * @param {Run} run
 * @param {string} key
 */
export function keepRun(run, key) {
  const known = run.info.until ? takes : runs;
  known.set(key, withNewest(known.get(key) ?? [], run));
  update(key);
}

/**
 * @param {string} key
 * @param {string} name
 */
export function findRun(key, name) {
  const all = [...(runs.get(key) ?? []), ...(takes.get(key) ?? [])];
  return all.find((run) => run.run === name);
}
