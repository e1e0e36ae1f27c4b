// A strip on the sampler: one square per block, which shows how the block came about, plays it, and takes directions for the
// next run. The server says the same in a line of text, which shows if this file is missing. None of the strip is saved.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { NAMELESS, PREFIX, after, allNodes, inputSlot, make, nodeOf, onOutput, rootGraph } from "./common.js";
import { RunLog, earlierOf, mergeRuns, shownOf, withNewest } from "./runs.js";
import { addElement } from "./same_place.js";
import { Strip } from "./strip.js";
import { STYLE } from "./strip_style.js";
import { words } from "./strip_words.js";
import { claim, fromElsewhere, fromHere } from "./tabs.js";

const SAMPLER = "SDVGSpeculativeSampler";
const SCROLLERS = ".sdvg-squares, .sdvg-side, textarea"; // up and down
const PLAY = "sdvg.strip.play";
const SETTLED = [100, 500, 2000]; // ms, after one of which the page calls a workflow the open one, whose nodes it made before

const strips = new Map(); // node -> its strip
const runs = new Map(); // workflow and node -> the runs there that this page knows of, oldest first
const takes = new Map(); // the same -> runs that made takes to compare

/** Where a run is kept; null for one without a workflow, such as a script's: its node's id says nothing of any node here. */
function keyOf({ workflow, node }) {
  return workflow ? `${workflow} ${node}` : null;
}

/** The key of a node of the open workflow, by its id in a run. */
function keyHere(id) {
  return `${rootGraph()?.id} ${id}`;
}

function stripOf(key) {
  const [workflow, id] = key.split(" ");
  return workflow === rootGraph()?.id ? strips.get(nodeOf(id)) : undefined;
}

/** Whether a run was queued from here, or its settings are those of the node. */
function belongs({ info }, node) {
  return fromHere(info.prompt) || Boolean(info.signature) && info.signature.all === asked.get(node)?.all;
}

/** The id by which the server knows a node. */
function idOf(node) {
  return [...runs.keys(), ...takes.keys()].map((key) => key.split(" ")[1]).find((id) => nodeOf(id) === node) ?? node.id;
}

/** What a strip's run can be compared with, oldest first: runs that made takes, and other whole ones. */
function othersOf(node) {
  const key = keyHere(idOf(node));
  return [...earlierOf(runs.get(key) ?? [], strips.get(node)?.log), ...(takes.get(key) ?? [])];
}

/** Have the strip of a key show the newest of its own runs, as it now stands. */
function update(key) {
  const strip = stripOf(key);
  if (!strip) return;
  strip.making = strip.making && !takes.get(key)?.some((log) => log.failed);
  const log = shownOf(runs.get(key) ?? [], (one) => one.run === strip.log?.run || belongs(one, strip.node));
  if (log && log !== strip.log) strip.show(log);
  else strip.refresh();
}

// --- live

/** A run that makes a take to compare is shown on the sheet of its strip alone. */
function keep(log, key) {
  const logs = log.info.until ? takes : runs;
  logs.set(key, withNewest(logs.get(key) ?? [], log));
  update(key);
}

function find(key, run) {
  return [...(runs.get(key) ?? []), ...(takes.get(key) ?? [])].find((log) => log.run === run);
}

function onRun({ detail }) {
  const key = keyOf(detail);
  if (key) keep(new RunLog(detail), key);
}

function onTake(detail, key) {
  const log = find(key, detail.run);
  if (log && detail.number === detail.until) log.events.push(detail);
  if (log) update(key);
}

function onBlock({ detail }) {
  const key = keyOf(detail);
  if (!key) return;
  if (detail.until) return onTake(detail, key);
  if (!find(key, detail.run) && detail.number === 1) keep(new RunLog(detail), key);
  const log = find(key, detail.run);
  const place = log?.place(detail) ?? "lost";
  if (place === "next") {
    log.events.push(detail);
    const strip = stripOf(key);
    if (strip?.log === log) strip.grow();
    else update(key);
  } else if (place === "lost") {
    if (log) runs.set(key, runs.get(key).filter((one) => one !== log));
    if (log && stripOf(key)?.log === log) stripOf(key).show(null);
    ask();
  }
}

function onDone({ detail }) {
  const key = keyOf(detail);
  const log = key && find(key, detail.run);
  if (log) {
    log.done = detail;
    update(key);
  }
  ask();
}

/** What is not done by now ended without a result. */
function endAll() {
  for (const [key, logs] of [...runs, ...takes]) {
    const going = logs.filter((log) => log.going);
    for (const log of going) log.ended = true;
    if (going.length) update(key);
  }
}

let idle = false; // the server has nothing to do

function onStatus({ detail }) {
  idle = detail?.exec_info?.queue_remaining === 0;
  if (idle) endAll();
}

// --- what went wrong

/** Show it at the sampler that it concerns; what concerns another node of ours, at every sampler. */
function complain(id, type, sentence) {
  if (!type.startsWith(PREFIX)) return;
  const own = strips.get(nodeOf(id));
  for (const strip of own ? [own] : strips.values()) strip.view.error.textContent = sentence;
}

/** What the server refused to queue. */
function onRefused({ detail }) {
  for (const [id, { class_type: type, errors }] of Object.entries(detail)) {
    if (!errors.length) continue;
    const [{ type: kind, message, details }] = errors;
    complain(id, type, kind.startsWith("exception") ? details : `${message}: ${details}`);
  }
}

function onError({ detail }) {
  if (!fromElsewhere(detail.prompt_id)) complain(detail.node_id, detail.node_type, detail.exception_message);
}

// --- after the fact

let asking = false;
let askAgain = false;
let asked = new Map(); // sampler -> the signature of what is set there and upstream
let decoding = {}; // the same run, by how many blocks stay -> how many of them are decoded again
let loading = {}; // run that the server can use again -> seconds until its models are loaded

/** Ask the server which runs it knows of, the newest of each node, and what the samplers are set to. */
async function ask() {
  askAgain = true;
  if (asking) return;
  asking = true;
  try {
    while (askAgain && strips.size) {
      askAgain = false;
      await hearAll();
    }
  } catch (error) {
    console.warn("SDVG: the server does not say what it runs", error);
  } finally {
    asking = false;
  }
}

async function hearAll() {
  const { output } = await app.graphToPrompt();
  const answer = await api.fetchApi("/sdvg/runs", { method: "POST", body: JSON.stringify(output) });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  const told = await answer.json();
  asked = new Map(Object.entries(told.asked).map(([id, one]) => [nodeOf(id), one]));
  ({ loading, decoding } = told);
  hear(runs, told.runs.filter(({ until }) => !until));
  hear(takes, told.runs.filter(({ until }) => until));
  strips.forEach((strip) => update(keyHere(idOf(strip.node))));
}

/** Take in what the server knows of runs. */
function hear(known, all) {
  const told = all.filter(({ workflow }) => workflow !== NAMELESS);
  for (const key of new Set(told.map(keyOf).filter(Boolean))) {
    const logs = told.filter((one) => keyOf(one) === key).map(logOf);
    known.set(key, mergeRuns(known.get(key) ?? [], logs));
  }
}

function logOf(told) {
  const log = RunLog.fromServer(told);
  log.ended = idle;
  if (told.until) log.events = log.events.filter(({ number }) => number === told.until);
  return log;
}

/** Show what is the open workflow's, and nothing else. */
function check() {
  for (const [node, strip] of strips) {
    if (strip.log && !belongs(strip.log, node)) strip.show(null);
    update(keyHere(idOf(node)));
    if (strip.log && !fromHere(strip.log.info.prompt)) claim(strip.log.info.prompt);
  }
}

/** What the run after the one shown can be foretold by. */
function outlookOf(node, log) {
  return { now: asked.get(node), loading: loading[log.run], decoding: decoding[log.run], moving: seedMoves(node) };
}

/** Whether the seed changes before the next run; where it changes after one, it has changed already. */
function seedMoves(node) {
  if (app.extensionManager.setting.get("Comfy.WidgetControlMode") !== "before") return false;
  const slot = inputSlot(node, "seed");
  const { widgets = [] } = (slot >= 0 && node.getInputNode(slot)) || node;
  return widgets.some(({ value }) => ["increment", "decrement", "randomize"].includes(value)); // its name is the page's affair
}

/** Show the strips again after the page was loaded, another tab opened, or a step undone: all of these make all nodes anew. */
function restore() {
  const here = new Set(allNodes());
  for (const [node, strip] of strips) if (!here.has(node)) leave(strip);
  for (const strip of strips.values()) strip.sync();
  for (const ms of SETTLED) setTimeout(check, ms);
  for (const key of runs.keys()) update(key);
  ask();
  refocus();
}

/** What comes from the cache has the ids of the workflow that made it. An output does not displace a run that is going on. */
onOutput(SAMPLER, (node, { sdvg_route: events, sdvg_run: told = [] }, run) => {
  if (!events?.length || told.at(-1)?.until) return;
  const log = RunLog.fromOutput(events, told.at(-1));
  if (run && !log.info.workflow && !fromHere(run.prompt)) return;
  if (run) log.info.prompt = run.prompt;
  const key = keyHere(run?.id ?? log.info.node);
  const shown = shownOf(runs.get(key) ?? [], (one) => belongs(one, node));
  const first = !shown && !find(key, log.run);
  if (first || (run && belongs(log, node) && (!shown?.going || shown.run === log.run))) keep(log, key);
});

// --- nodes

function addStrip(node) {
  if (node.comfyClass !== SAMPLER) return;
  const strip = new Strip(node, { stop, keep: keepBlocks, undo: (number) => remember(node, number), others: () => othersOf(node), outlook: (log) => outlookOf(node, log) });
  // Not in the panel of parameters beside the canvas.
  const options = { hideInPanel: true, getMinHeight: () => strip.height, getMaxHeight: () => strip.height };
  addElement(node, "route", "sdvg_route", strip.view.element, options);
  strip.view.element.addEventListener("pointerenter", mark, true);
  strip.view.element.addEventListener("wheel", zoom, { passive: false });
  strips.set(node, strip);
  strip.play(app.extensionManager?.setting?.get(PLAY) !== false);
  after(node, "onRemoved", () => leave(strip));
}

/** Mark what the wheel scrolls as the mouse comes to it, so that scrolling reads no layout. */
function mark({ target }) {
  if (target.matches(SCROLLERS)) target.classList.toggle("scrolls", target.scrollHeight > target.clientHeight + 1);
}

/** The wheel over the strip zooms as it does beside it, unless it scrolls something there. Nodes 2.0 sees to that itself. */
function zoom(event) {
  if (event.target.closest(".scrolls") || event.currentTarget.closest("[data-node-id]")) return;
  event.preventDefault();
  app.canvas.processMouseWheel?.(event);
}

// Undoing a step makes all nodes anew, and so all strips.
let focused = null; // the node and the square that had the focus when the user undid a step

function leave(strip) {
  strip.end();
  strips.delete(strip.node);
}

/** If a step is undone at all, it is soon. */
function remember({ id }, number) {
  focused = { id, number };
  setTimeout(() => (focused = null), 5000);
}

/** Once it is on the page, give the focus back to the square that had it; again if Nodes 2.0 draws the node anew. */
function refocus(tries = 60) {
  const strip = focused && [...strips.values()].find(({ node }) => node.id === focused.id);
  const square = strip?.view.square(focused.number);
  const active = document.activeElement;
  const left = active !== document.body && !active.closest(".sdvg-squares"); // the user went elsewhere
  if (square && square !== active && !left) square.focus({ preventScroll: true });
  if (!square || left || !tries) focused = null;
  else requestAnimationFrame(() => refocus(tries - 1));
}

/** Ask the server to end a run after the block it is making. */
async function stop(log) {
  const show = (stopping) => {
    log.stopping = stopping;
    for (const strip of strips.values()) if (strip.log === log) strip.refresh();
  };
  show(true);
  if (!(await post("/sdvg/stop", { node: log.info.node }, words().stop))) show(false);
}

/** Have the server write the first `number` blocks to its disk, where a restart leaves them; whether it did. */
async function keepBlocks(number, digest, silent = false) {
  const summary = words().lock(number);
  const answer = await post("/sdvg/keep", { blocks: `${number}:${digest}` }, summary);
  if (answer && !silent) app.extensionManager.toast.add({ severity: "info", summary, detail: words().onDisk((answer.bytes / 1e6).toFixed(answer.bytes < 1e6 ? 2 : 0)), life: 6000 });
  return Boolean(answer);
}

/** What the server answers; null if it refuses, which is then shown. */
async function post(path, body, summary) {
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await api.fetchApi(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return await answer.json();
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `${answer.status} ${answer.statusText}`);
  } catch (error) {
    app.extensionManager.toast.add({ severity: "error", summary, detail: error.message, life: 8000 });
    return null;
  }
}

app.registerExtension({
  name: "sdvg.route_strip",
  settings: [
    {
      id: PLAY,
      category: ["SDVG", "Sampler", "Play"],
      name: "SDVG: play the blocks on the sampler",
      tooltip: "Loads a small picture of every finished block from the server, about 110 KB each for photographic frames.",
      type: "boolean",
      defaultValue: true,
      onChange: (on) => strips.forEach((strip) => strip.play(on)),
    },
  ],
  setup() {
    document.head.append(make("style", "", STYLE));
    api.addEventListener("sdvg.run", onRun);
    api.addEventListener("sdvg.block", onBlock);
    api.addEventListener("sdvg.done", onDone);
    api.addEventListener("sdvg.queueing", () => strips.forEach(({ view }) => (view.error.textContent = "")));
    api.addEventListener("sdvg.refused", onRefused);
    api.addEventListener("execution_error", onError);
    api.addEventListener("status", onStatus);
    api.addEventListener("reconnected", ask);
    for (const end of ["execution_start", "execution_error", "execution_interrupted"]) api.addEventListener(end, endAll);
    api.addEventListener("graphChanged", () => {
      strips.forEach((strip) => strip.sync());
      ask();
    });
  },
  nodeCreated: addStrip,
  afterConfigureGraph: restore,
});
