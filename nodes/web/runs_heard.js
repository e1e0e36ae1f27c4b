// What the server says of runs by itself: that one began, of each block, and how it ended.
import { askServer } from "./frontend.js";
import { awaitsRecording, keepSoFar } from "./live_recording.js";
import { isGoing, isOlder, newRun, placeOf } from "./runs.js";
import { ask, others } from "./runs_asked.js";
import {
  findRun,
  keepRun,
  keyOf,
  runs,
  server,
  stripOf,
  strips,
  takes,
  update,
} from "./runs_known.js";

/** @param {RunInfo} info */
export function onRun(info) {
  const key = keyOf(info);
  if (key) keepRun({ ...newRun(info), heard: true }, key);
  others.own(true);
}

/** @param {LiveState & { run: string, workflow: string | null, node: string }} state */
export function onLive(state) {
  const key = keyOf(state);
  const run = key && findRun(key, state.run);
  if (!run) {
    ask();
    return;
  }
  if (isOlder(state, run.info.state)) return;
  run.info.state = state;
  run.heard = true;
  const strip = stripOf(key);
  if (strip?.run === run) strip.live?.draw();
}

/** @param {BlockEvent} event */
export function onBlock(event) {
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
  if (run.info.live) keepSoFar(run); // last, as the tab may have no room for it
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
export function onDone(done) {
  const key = keyOf(done);
  const run = key && findRun(key, done.run);
  if (run) {
    run.done = done;
    update(key);
  }
  ask();
}

/** What is not done by now ended without a result. */
export function endAll() {
  for (const [key, all] of [...runs, ...takes]) {
    const going = all.filter(isGoing);
    for (const run of going) run.ended = true;
    if (going.length) update(key);
  }
}

/** @param {{ exec_info?: { queue_remaining: number } } | null} status */
export function onStatus(status) {
  server.isIdle = status?.exec_info?.queue_remaining === 0;
  others.work(status !== null && !server.isIdle);
  if (!server.isIdle) return;
  endAll();
  for (const strip of strips.values()) {
    strip.takes.end();
    strip.live?.forgetQueued();
  }
  if (awaitsRecording()) ask(); // whether the server still knows of it
}

/** The server says so as its queue changes, and once before any pack hears it. */
export async function askStatus() {
  try {
    const answer = await askServer("/prompt");
    if (answer.ok) onStatus(await answer.json());
  } catch (error) {
    console.warn("SDVG", error);
  }
}
