// A strip on the sampler: one square per block, which shows how the block came about, plays it, and takes directions for the
// next run. The server says the same in a line of text, which shows if this file is missing. None of the strip is saved.
import { after, make } from "./dom.js";
import {
  SAMPLER,
  allNodes,
  claim,
  fromHere,
  isOpening,
  listen,
  onOutput,
  onQueue,
  queueWorkflow,
  register,
  setting,
  zoomCanvas,
} from "./frontend.js";
import { awaitsRecording } from "./live_recording.js";
import { addElement } from "./node_elements.js";
import { isGoing, runOfOutput, shownOf } from "./runs.js";
import { ask, others } from "./runs_asked.js";
import { askStatus, endAll, onBlock, onDone, onLive, onRun, onStatus } from "./runs_heard.js";
import {
  belongs,
  findRun,
  idOf,
  keepRun,
  keyHere,
  othersOf,
  runs,
  signatures,
  strips,
  update,
} from "./runs_known.js";
import { keepBlocks, steer, stop } from "./server_acts.js";
import { Strip } from "./strip.js";
import { onBroken, onError, onRefused } from "./strip_faults.js";

const SCROLLERS = ".sdvg-squares, .sdvg-side, .sdvg-shots, textarea"; // up and down
const PLAY = "sdvg.strip.play";
const BOX = "[data-node-id] input"; // of Nodes 2.0
const TYPED = { input: "textarea", change: BOX, keyup: BOX };
// ms, after one of which the page calls a workflow the open one, whose nodes it made before.
const SETTLED = [100, 500, 2000];

/** Show what is the open workflow's, and nothing else. */
function check() {
  for (const [node, strip] of strips) {
    if (strip.run && !belongs(strip.run, node)) strip.show(null);
    update(keyHere(idOf(node)));
    const prompt = strip.run?.info.prompt;
    if (strip.run && !fromHere(prompt)) claim(prompt);
  }
  if (awaitsRecording()) ask();
}

/** Look again when the workflow is open, which takes long on a busy machine. */
function checkOnceOpen() {
  if (isOpening()) setTimeout(checkOnceOpen, SETTLED[0]);
  else check();
}

/** Show the strips again after the page was loaded, another tab opened, or a step undone: all of these make all nodes anew. */
function restore() {
  const here = new Set(allNodes());
  for (const [node, strip] of strips) if (!here.has(node)) leave(strip);
  for (const strip of strips.values()) strip.sync();
  for (const ms of SETTLED) setTimeout(check, ms);
  setTimeout(checkOnceOpen);
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
    askStatus,
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
    askStatus();
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
