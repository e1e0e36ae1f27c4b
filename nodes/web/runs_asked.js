// What the server is asked: which runs it knows of, what the samplers are set to, and what the next run makes.
import { NAMELESS, askServer, nodeOf, promptNow } from "./frontend.js";
import { TEXT_OF } from "./node_inputs.js";
import { mergeRuns, runOfServer } from "./runs.js";
import {
  idOf,
  keyHere,
  keyOf,
  runs,
  server,
  signatures,
  stripOf,
  strips,
  takes,
  update,
} from "./runs_known.js";
import { watchOthers } from "./runs_watch.js";
import { Account } from "./runs_account.js";
import { idIn } from "./strip_takes.js";

/** @typedef {import("./strip.js").Strip} Strip */
/** @typedef {import("./runs_account.js").RunAccount} RunAccount */

const account = new Account();

const BETWEEN = 500; // ms between two questions to the server

let isAsking = false;
let askAgain = false;
let askedAt = -BETWEEN;

/** Ask the server which runs it knows of, what the samplers are set to, and what the next run makes. */
export async function ask() {
  askAgain = true;
  if (isAsking) return;
  isAsking = true;
  try {
    while (askAgain && strips.size) {
      const early = askedAt + BETWEEN - performance.now();
      if (early > 0) await new Promise((resolve) => setTimeout(resolve, early));
      askAgain = false;
      askedAt = performance.now();
      await hearAll();
    }
  } catch (error) {
    console.warn("SDVG", error);
    for (const strip of strips.values()) {
      strip.tell(strip.key, null);
      strip.refresh();
    }
  } finally {
    isAsking = false;
  }
}

async function hearAll() {
  const keys = [...strips.values()].map((strip) => {
    const { key, run } = strip;
    return { strip, key, over: run?.done ? run.run : "" };
  });
  const { output } = await promptNow();
  for (const { strip } of keys) {
    if (strip.tau !== null) tryTau(output, strip.node, strip.tau);
    if (strip.board.draft !== null) tryPrompt(output, strip.node, strip.board.draft);
  }
  const { all, asked, forecast = {}, refused = {} } = await askNext(output);
  signatures.clear();
  const forecasts = byNode(forecast);
  const refusals = byNode(refused);
  for (const [node, signature] of byNode(asked)) signatures.set(node, signature);
  hear(
    runs,
    all.filter(({ until }) => !until),
  );
  hear(
    takes,
    all.filter(({ until }) => until),
  );
  const known = all.map(({ run }) => run);
  const prompts = all.map(({ prompt }) => prompt);
  for (const { strip, key, over } of keys) {
    const refusal = refusals.get(strip.node);
    strip.tell(key, forecasts.get(strip.node) ?? {}, known, refusal, over);
    strip.view.forgive(refusal ?? signatures.get(strip.node)?.all ?? "none");
    const place = keyHere(idOf(strip.node));
    if (stripOf(place) === strip) update(place);
    else strip.refresh();
    if (server.isIdle) strip.recording.settleLost(prompts);
  }
  await hearRefined(keys, output);
}

/**
 * Ask besides what the large model would make of the recordings in the graph if it refined them.
 * @param {{ strip: Strip, key: string }[]} keys
 * @param {ApiPrompt} output
 */
async function hearRefined(keys, output) {
  const offered = keys.filter(({ strip }) => strip.recording.canRefine);
  if (!offered.length) return;
  for (const { strip } of offered) strip.recording.tryRefine(output);
  const forecasts = byNode((await askNext(output)).forecast ?? {});
  for (const { strip, key } of offered)
    strip.recording.refined = { key, runs: forecasts.get(strip.node) ?? {} };
}

/**
 * Ask for the runs that are known, and for a prompt's next one.
 * @param {ApiPrompt} output
 * @returns {Promise<{ all: RunAccount[], asked: Record<string, Signature>, forecast?: Record<string, Record<string, Forecast>>,
 *   refused?: Record<string, string> }>}
 */
function askNext(output) {
  return askRuns({ method: "POST", body: JSON.stringify(output) });
}

/**
 * Ask the server for what is new of its runs; returns its answer, with `all` of them.
 * @param {RequestInit} [options]
 */
async function askRuns(options) {
  const answer = await askServer(`/sdvg/runs?after=${account.newest}`, options);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  const told = await answer.json();
  return { ...told, all: account.take(told) };
}

/**
 * What the server says by id, by the node of the open workflow.
 * @template T
 * @param {Record<string, T>} answers
 * @returns {Map<GraphNode, T>}
 */
function byNode(answers) {
  /** @type {Map<GraphNode, T>} */
  const known = new Map();
  for (const [id, answer] of Object.entries(answers)) {
    const node = nodeOf(id);
    if (node) known.set(node, answer);
  }
  return known;
}

/**
 * Put the tau that is tried in the place of the one that is set.
 * @param {ApiPrompt} output
 * @param {GraphNode} node
 * @param {number} tau
 */
function tryTau(output, node, tau) {
  const wire = output[idIn(output, node)]?.inputs.router;
  const router = Array.isArray(wire) ? output[wire[0]] : undefined;
  if (router) router.inputs["policy.tau"] = tau;
}

/**
 * Put a prompt that is being typed in the place of the one that is set.
 * @param {ApiPrompt} output
 * @param {GraphNode} node
 * @param {string} prompt
 */
function tryPrompt(output, node, prompt) {
  const MOST_STEPS = 16;
  let source = output[idIn(output, node)];
  for (let steps = 0; steps < MOST_STEPS && source; steps += 1) {
    const name = TEXT_OF[source.class_type];
    if (name) source.inputs[name] = prompt;
    const wire = name ? undefined : source.inputs.positive;
    if (!Array.isArray(wire)) return;
    source = output[wire[0]];
  }
}

/**
 * Take in what the server knows of runs.
 * @param {Map<string, Run[]>} known
 * @param {RunAccount[]} answer
 */
function hear(known, answer) {
  const all = answer.filter(({ workflow }) => workflow !== NAMELESS);
  const keys = all.map(keyOf).filter((key) => key !== null);
  for (const key of new Set(keys)) {
    const theirs = all.filter((run) => keyOf(run) === key).map(runOfServer);
    for (const run of theirs) run.ended = server.isIdle;
    known.set(key, mergeRuns(known.get(key) ?? [], theirs));
  }
}

/** Another page's runs, as the server knows them. */
export const others = watchOthers(async () => {
  if (!strips.size) return;
  const { all } = await askRuns();
  hear(
    runs,
    all.filter((/** @type {RunAccount} */ { until }) => !until),
  );
  for (const [node] of strips) update(keyHere(idOf(node)));
});
