// A strip on the sampler: one square per block, which shows how the block came about, plays it, and takes directions for the
// next run. The server says the same in a line of text, which shows if this file is missing. None of the strip is saved.
import { after, make } from "./dom.js";
import {
  NAMELESS,
  PREFIX,
  SAMPLER,
  addElement,
  allNodes,
  askServer,
  claim,
  fromElsewhere,
  fromHere,
  listen,
  nodeOf,
  onOutput,
  onQueue,
  promptNow,
  queueWorkflow,
  register,
  rootGraph,
  setting,
  toast,
  zoomCanvas,
} from "./frontend.js";
import {
  earlierOf,
  isGoing,
  mergeRuns,
  newRun,
  placeOf,
  runOfOutput,
  runOfServer,
  shownOf,
  withNewest,
} from "./runs.js";
import { nameQueued, noteQueued, takeQueued } from "./live_recording.js";
import { TEXT_OF } from "./node_inputs.js";
import { watchOthers } from "./runs_watch.js";
import { Strip } from "./strip.js";
import { livesIn } from "./strip_model.js";
import { AHEAD, PATIENCE } from "./strip_live.js";
import { idIn } from "./strip_takes.js";
import { text } from "./words.js";

const SCROLLERS = ".sdvg-squares, .sdvg-side, .sdvg-shots, textarea"; // up and down
const PLAY = "sdvg.strip.play";
const BOX = "[data-node-id] input"; // of Nodes 2.0
const TYPED = { input: "textarea", change: BOX, keyup: BOX };
// ms, after one of which the page calls a workflow the open one, whose nodes it made before.
const SETTLED = [100, 500, 2000];
const BETWEEN = 500; // ms between two questions to the server
const LIFE = { done: 6000, failed: 8000 }; // ms of a message

/** @type {Map<GraphNode, Strip>} */
const strips = new Map();
/** @type {Map<string, Run[]>} */
const runs = new Map(); // workflow and node -> the runs there that this page knows of, oldest first
/** @type {Map<string, Run[]>} */
const takes = new Map(); // the same -> runs that made takes to compare

/**
 * Where a run is kept; null for one without a workflow, such as a script's: its node's id says nothing of any node here.
 * @param {{ workflow: string | null, node: string }} whose
 */
function keyOf({ workflow, node }) {
  return workflow ? `${workflow} ${node}` : null;
}

/**
 * The key of a node of the open workflow, by its id in a run.
 * @param {string | number} id
 */
function keyHere(id) {
  return `${rootGraph()?.id} ${id}`;
}

/** @param {string} key */
function stripOf(key) {
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
function belongs(run, node) {
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
function idOf(node) {
  const ids = [...runs.keys(), ...takes.keys()].map((key) => key.split(" ")[1]);
  return ids.find((id) => nodeOf(id) === node) ?? node.id;
}

/**
 * What a strip's run can be compared with, oldest first: runs that made takes, and others that are over.
 * @param {GraphNode} node
 */
function othersOf(node) {
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
function update(key) {
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

// --- live

/**
 * A run that makes a take to compare is shown on the sheet of its strip alone.
 * @param {Run} run
 * @param {string} key
 */
function keepRun(run, key) {
  const known = run.info.until ? takes : runs;
  known.set(key, withNewest(known.get(key) ?? [], run));
  update(key);
}

/**
 * @param {string} key
 * @param {string} name
 */
function findRun(key, name) {
  const all = [...(runs.get(key) ?? []), ...(takes.get(key) ?? [])];
  return all.find((run) => run.run === name);
}

/** @param {RunInfo} info */
function onRun(info) {
  const key = keyOf(info);
  if (key) keepRun({ ...newRun(info), heard: true }, key);
  others.own(true);
}

/** @param {LiveState & { run: string, workflow: string | null, node: string }} state */
function onLive(state) {
  const key = keyOf(state);
  const run = key && findRun(key, state.run);
  if (!run) {
    ask();
    return;
  }
  run.info.state = state;
  run.heard = true;
  const strip = stripOf(key);
  if (strip?.run === run) strip.live?.draw();
}

/** @param {BlockEvent} event */
function onBlock(event) {
  const key = keyOf(event);
  if (!key) return;
  if (!event.until && !findRun(key, event.run) && event.number === 1) keepRun(newRun(event), key);
  const run = findRun(key, event.run);
  others.own(true);
  if (run) run.heard = true;
  if (event.until) onTake(run, event, key);
  else if (!run) ask();
  else if (["next", "again"].includes(placeOf(run, event))) addBlock(run, event, key);
  else if (placeOf(run, event) === "lost") forgetRun(run, key);
}

/**
 * @param {Run | undefined} run
 * @param {BlockEvent} event
 * @param {string} key
 */
function onTake(run, event, key) {
  if (run && event.number === event.until) run.events.push(event);
  if (run) update(key);
}

/**
 * A block that is made again takes the place of that one and of all after it.
 * @param {Run} run
 * @param {BlockEvent} event
 * @param {string} key
 */
function addBlock(run, event, key) {
  run.events.splice(event.number - 1, Infinity, event);
  const strip = stripOf(key);
  if (strip?.run === run) strip.grow();
  else update(key);
}

/**
 * Forget a run of which blocks are missing, and ask the server for all of it.
 * @param {Run} run
 * @param {string} key
 */
function forgetRun(run, key) {
  runs.set(
    key,
    (runs.get(key) ?? []).filter((other) => other !== run),
  );
  const strip = stripOf(key);
  if (strip?.run === run) strip.show(null);
  ask();
}

/** @param {RunDone & { run: string, workflow: string | null, node: string }} done */
function onDone(done) {
  const key = keyOf(done);
  const run = key && findRun(key, done.run);
  if (run) {
    run.done = done;
    update(key);
  }
  ask();
}

/** What is not done by now ended without a result. */
function endAll() {
  for (const [key, all] of [...runs, ...takes]) {
    const going = all.filter(isGoing);
    for (const run of going) run.ended = true;
    if (going.length) update(key);
  }
}

let isIdle = false; // the server has nothing to do

/** @param {{ exec_info?: { queue_remaining: number } } | null} status */
function onStatus(status) {
  isIdle = status?.exec_info?.queue_remaining === 0;
  others.work(status !== null && !isIdle);
  if (!isIdle) return;
  endAll();
  for (const strip of strips.values()) {
    strip.takes.end();
    strip.live?.forgetQueued();
  }
}

/** The server says so as its queue changes, and once before any pack hears it. */
async function askStatus() {
  const answer = await askServer("/prompt");
  if (answer.ok) onStatus(await answer.json());
}

// --- what went wrong

/**
 * Show it at the sampler that it concerns; what concerns another node of ours, at every sampler.
 * @param {string} id
 * @param {string} type
 * @param {string} sentence
 */
function complain(id, type, sentence) {
  if (!type.startsWith(PREFIX)) return;
  const node = nodeOf(id);
  const own = node && strips.get(node);
  for (const strip of own ? [own] : strips.values()) strip.view.complain(sentence);
  ask();
}

/**
 * What the server refused to queue; null as something is about to be queued.
 * @param {NodeErrors | null} refused
 * @param {string} [prompt]
 */
function onRefused(refused, prompt) {
  if (refused) nameQueued(prompt);
  else {
    noteQueued([...strips.values()].map(({ inputs }) => inputs));
    for (const { view } of strips.values()) view.complain("");
  }
  for (const [id, { class_type: type, errors }] of Object.entries(refused ?? {})) {
    const [error] = errors;
    if (!error) continue;
    const { type: kind, message, details } = error;
    const isOurs = kind.startsWith("exception");
    complain(id, type, isOurs ? details : (missing(id, error) ?? `${message}: ${details}`));
  }
}

/**
 * Whom a missing input lacks, if that is a node of ours that is bypassed.
 * @param {string} id
 * @param {NodeError} error
 */
function missing(id, { type, extra_info: info }) {
  const BYPASSED = 4;
  if (type !== "required_input_missing") return undefined;
  const ours = [...allNodes()].filter((node) => node.comfyClass?.startsWith(PREFIX));
  const bypassed = ours.find(({ mode }) => mode === BYPASSED);
  const name = bypassed?.title ?? bypassed?.type ?? "";
  return (
    bypassed &&
    text("bypassed", { name, input: info?.input_name ?? "", node: nodeOf(id)?.title ?? id })
  );
}

/**
 * A prompt ended by a fault: a session in it that never began, or made nothing, is not begun again by the next run.
 * @param {{ prompt_id: string }} ended
 */
function onBroken({ prompt_id: prompt }) {
  for (const [node, { inputs, live }] of strips) {
    if (!fromHere(prompt) || !takeQueued(prompt, node)) continue;
    inputs.write("live", false);
    live?.forgetQueued();
  }
}

/** @param {{ prompt_id: string, node_id: string, node_type: string, exception_message: string }} error */
function onError({ prompt_id: prompt, node_id: id, node_type: type, exception_message: message }) {
  if (!fromElsewhere(prompt)) complain(id, type, message);
}

// --- after the fact

let isAsking = false;
let askAgain = false;
let askedAt = -BETWEEN;
/** @type {Map<GraphNode, Signature>} */
let signatures = new Map(); // sampler -> that of what is set there and upstream

/** Ask the server which runs it knows of, what the samplers are set to, and what the next run makes. */
async function ask() {
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
  const keys = [...strips.values()].map((strip) => ({ strip, key: strip.key }));
  const { output } = await promptNow();
  for (const { strip } of keys) {
    if (strip.tau !== null) tryTau(output, strip.node, strip.tau);
    if (strip.board.draft !== null) tryPrompt(output, strip.node, strip.board.draft);
  }
  const answer = await askServer("/sdvg/runs", { method: "POST", body: JSON.stringify(output) });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  /** @type {{ runs: (RunInfo & { events: BlockEvent[], done: RunDone | null })[], asked: Record<string, Signature>,
   *   forecast?: Record<string, Record<string, Forecast>>, refused?: Record<string, string> }} */
  const { runs: all, asked, forecast = {}, refused = {} } = await answer.json();
  signatures = new Map();
  /** @type {Map<GraphNode, Record<string, Forecast>>} */
  const forecasts = new Map();
  const refusals = new Map(Object.entries(refused).map(([id, sentence]) => [nodeOf(id), sentence]));
  for (const [id, signature] of Object.entries(asked)) {
    const node = nodeOf(id);
    if (!node) continue;
    signatures.set(node, signature);
    forecasts.set(node, forecast[id] ?? {});
  }
  hear(
    runs,
    all.filter(({ until }) => !until),
  );
  hear(
    takes,
    all.filter(({ until }) => until),
  );
  const known = all.map(({ run }) => run);
  for (const { strip, key } of keys) {
    const refusal = refusals.get(strip.node);
    strip.tell(key, forecasts.get(strip.node) ?? {}, known, refusal);
    strip.view.forgive(refusal ?? signatures.get(strip.node)?.all ?? "none");
    const place = keyHere(idOf(strip.node));
    if (stripOf(place) === strip) update(place);
    else strip.refresh();
  }
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
 * @param {(RunInfo & { events: BlockEvent[], done: RunDone | null })[]} answer
 */
function hear(known, answer) {
  const all = answer.filter(({ workflow }) => workflow !== NAMELESS);
  const keys = all.map(keyOf).filter((key) => key !== null);
  for (const key of new Set(keys)) {
    const theirs = all.filter((run) => keyOf(run) === key).map(runOfServer);
    for (const run of theirs) run.ended = isIdle;
    known.set(key, mergeRuns(known.get(key) ?? [], theirs));
  }
}

/** Another page's runs, as the server knows them. */
const others = watchOthers(async () => {
  if (!strips.size) return;
  const answer = await askServer("/sdvg/runs");
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  const { runs: all } = await answer.json();
  hear(
    runs,
    all.filter((/** @type {RunInfo} */ { until }) => !until),
  );
  for (const [node] of strips) update(keyHere(idOf(node)));
});

/** Show what is the open workflow's, and nothing else. */
function check() {
  for (const [node, strip] of strips) {
    if (strip.run && !belongs(strip.run, node)) strip.show(null);
    update(keyHere(idOf(node)));
    const prompt = strip.run?.info.prompt;
    if (strip.run && !fromHere(prompt)) claim(prompt);
  }
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
onOutput(SAMPLER, (node, { sdvg_route: events = [], sdvg_run: ends = [] }, output) => {
  const last = ends.at(-1);
  if (!events.length || last?.until) return;
  const run = runOfOutput(events, last);
  if (output && !run.info.workflow && !fromHere(output.prompt)) return;
  if (output) run.info.prompt = output.prompt;
  const key = keyHere(output?.id ?? run.info.node);
  const shown = shownOf(runs.get(key) ?? [], (other) => belongs(other, node));
  const isFirst = !shown && !findRun(key, run.run);
  const isFree = !shown || !isGoing(shown) || shown.run === run.run;
  if (isFirst || (output && belongs(run, node) && isFree)) keepRun(run, key);
});

// --- nodes

/** @param {GraphNode} node */
function addStrip(node) {
  if (node.comfyClass !== SAMPLER) return;
  const strip = new Strip(node, {
    stop,
    keep: keepBlocks,
    undo: (number) => remember(node, number),
    others: () => othersOf(node),
    ask,
    queue: queueWorkflow,
    steer,
    signature: () => signatures.get(node),
  });
  // Not in the panel of parameters beside the canvas.
  addElement(node, "route", "sdvg_route", strip.view.element, {
    hideInPanel: true,
    getMinHeight: () => strip.room.height, // and more where the node has room: the film grows
  });
  strip.view.element.addEventListener("pointerenter", mark, true);
  strip.view.element.addEventListener("wheel", zoom, { passive: false });
  strips.set(node, strip);
  strip.play(setting(PLAY) !== false);
  after(node, "onRemoved", () => leave(strip));
}

/**
 * Mark what the wheel scrolls as the mouse comes to it, so that scrolling reads no layout.
 * @param {Event} event
 */
function mark({ target }) {
  if (!(target instanceof Element) || !target.matches(SCROLLERS)) return;
  target.classList.toggle("scrolls", target.scrollHeight > target.clientHeight + 1);
}

/**
 * The wheel over the strip zooms as it does beside it, unless it scrolls something there. Nodes 2.0 sees to that itself.
 * @param {WheelEvent} event
 */
function zoom(event) {
  const { target, currentTarget } = event;
  if (target instanceof Element && target.closest(".scrolls")) return;
  if (currentTarget instanceof Element && currentTarget.closest("[data-node-id]")) return;
  event.preventDefault();
  zoomCanvas(event);
}

// Undoing a step makes all nodes anew, and so all strips.
/** @type {{ id: string | number, number: number } | null} */
let focused = null; // the node and the square that had the focus when the user undid a step

/** @param {Strip} strip */
function leave(strip) {
  strip.end();
  strips.delete(strip.node);
}

/**
 * If a step is undone at all, it is soon.
 * @param {GraphNode} node
 * @param {number} number
 */
function remember({ id }, number) {
  const square = { id, number };
  focused = square;
  setTimeout(() => {
    if (focused === square) focused = null; // else a later step is undone
  }, 5000);
}

/** Once it is on the page, give the focus back to the square that had it; again if Nodes 2.0 draws the node anew. */
function refocus(tries = 60) {
  if (!focused) return;
  const { id, number } = focused;
  const strip = [...strips.values()].find(({ node }) => node.id === id);
  const square = strip?.view.squares.square(number);
  const active = document.activeElement;
  const isElsewhere = active !== document.body && !active?.closest(".sdvg-squares");
  if (square && square !== active && !isElsewhere) square.focus({ preventScroll: true });
  if (isElsewhere || !tries) focused = null;
  else requestAnimationFrame(() => refocus(tries - 1));
}

/**
 * Ask the server to end a run after the block it is making.
 * @param {Run} run
 */
async function stop(run) {
  /** @param {boolean} stopping */
  const show = (stopping) => {
    run.stopping = stopping;
    for (const strip of strips.values()) if (strip.run === run) strip.refresh();
  };
  show(true);
  if (!(await post("/sdvg/stop", { node: run.info.node }, text("stop")))) show(false);
}

/**
 * Have the server write the blocks of a lock to its disk, where a restart leaves them; whether it did.
 * @param {string} lock
 * @param {string} blocks their names
 * @param {boolean} silent
 */
async function keepBlocks(lock, blocks, silent) {
  const summary = text("lock", { blocks });
  const answer = await post("/sdvg/keep", { blocks: lock }, summary);
  if (!answer || silent) return Boolean(answer);
  const megabytes = (answer.bytes / 1e6).toFixed(answer.bytes < 1e6 ? 2 : 0);
  toast("info", summary, text("onDisk", { megabytes }), LIFE.done);
  return true;
}

/**
 * Ask something of a live session.
 * @param {Run} run
 * @param {object} act
 * @returns {Promise<Steered>}
 */
async function steer({ run }, act) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ run, ...act });
  const answer = await askServer("/sdvg/steer", { method: "POST", headers, body });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  return { error: error ?? `${answer.status} ${answer.statusText}`, status: answer.status };
}

/**
 * What the server answers; null if it refuses, which is then shown.
 * @param {string} path
 * @param {object} body
 * @param {string} summary
 */
async function post(path, body, summary) {
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await askServer(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return await answer.json();
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `${answer.status} ${answer.statusText}`);
  } catch (error) {
    toast("error", summary, /** @type {Error} */ (error).message, LIFE.failed);
    return null;
  }
}

register({
  name: "sdvg.route_strip",
  settings: [
    {
      id: PLAY,
      category: ["SDVG", "Sampler", "Play"],
      name: PLAY, // its words are in locales/*/settings.json
      type: "boolean",
      defaultValue: true,
      onChange: (/** @type {boolean} */ on) => strips.forEach((strip) => strip.play(on)),
    },
    {
      id: AHEAD.id,
      category: ["SDVG", "Live", "Ahead"],
      name: AHEAD.id,
      type: "number",
      attrs: { min: 1, max: 16, step: 1, showButtons: true },
      defaultValue: AHEAD.usual,
    },
    {
      id: PATIENCE.id,
      category: ["SDVG", "Live", "Patience"],
      name: PATIENCE.id,
      type: "number",
      attrs: { min: 1, max: 1440, step: 1, showButtons: true },
      defaultValue: PATIENCE.usual,
    },
  ],
  async init() {
    const href = new URL("style.css", import.meta.url).href;
    const link = make("link", "", "", { rel: "stylesheet", href });
    document.head.append(link);
    await new Promise((resolve) => {
      link.onload = resolve;
      link.onerror = resolve;
    });
  },
  setup() {
    listen("sdvg.run", onRun);
    listen("sdvg.block", onBlock);
    listen("sdvg.live", onLive);
    listen("sdvg.done", onDone);
    listen("progress_text", () => strips.forEach((strip) => strip.room.fitLine()));
    onQueue(onRefused);
    listen("execution_error", onError);
    listen("status", onStatus);
    askStatus().catch((error) => console.warn("SDVG", error));
    listen("reconnected", ask);
    for (const end of ["execution_start", "execution_error", "execution_interrupted"])
      listen(end, endAll);
    for (const end of ["execution_success", "execution_error", "execution_interrupted"])
      listen(end, ({ prompt_id: prompt }) => {
        for (const strip of strips.values()) strip.takes.end(prompt);
        others.own(false);
      });
    listen("execution_start", () => others.own(true));
    for (const end of ["execution_error", "execution_interrupted"]) listen(end, onBroken);
    const onChange = () => {
      for (const strip of strips.values()) strip.sync();
      ask();
    };
    listen("graphChanged", onChange);
    // Of what is typed into a node ComfyUI says it at the next click only.
    for (const [type, boxes] of Object.entries(TYPED))
      document.addEventListener(type, ({ target }) => {
        if (!(target instanceof Element) || !target.matches(boxes)) return;
        if (!target.closest('[class^="sdvg-"]')) setTimeout(onChange);
      });
  },
  nodeCreated: addStrip,
  afterConfigureGraph: restore,
});
