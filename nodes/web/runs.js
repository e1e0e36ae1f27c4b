// Runs, as far as they are known: plain values. What the next one makes again, the server says.
import { takesOf } from "./blocks.js";
import { lockAt } from "./locks.js";
import { placesOfRun } from "./shots.js";

/**
 * @param {RunInfo} info
 * @param {BlockEvent[]} [events]
 * @param {RunDone | null} [done]
 * @returns {Run}
 */
export function newRun(info, events = [], done = null) {
  const { run, of, directions = "", takes = "" } = info;
  const unknown = { ended: false, stopping: false, heard: false };
  return { info, run, of, directions, takes, events, done, ...unknown };
}

/**
 * From the answer to /sdvg/runs.
 * @param {RunInfo & { events: BlockEvent[], done: RunDone | null }} answer
 */
export function runOfServer({ events, done, ...info }) {
  const { until } = info;
  return newRun(info, until ? events.filter(({ number }) => number === until) : events, done);
}

/**
 * From a node's output, where the first and the last event of the run are one.
 * @param {BlockEvent[]} all
 * @param {Partial<RunInfo & RunDone>} [last]
 */
export function runOfOutput(all, last = {}) {
  const { run, node, workflow, of } = all[all.length - 1];
  const events = all.filter((event) => event.run === run); // with a list on an input, the output has several runs
  const info = { run, node, workflow, of, ...last };
  const done = { blocks: events.length, of: info.of, stopped: false, speed_up: null };
  return newRun(info, events, { ...done, ...last });
}

/** @param {Run} run */
export function isGoing(run) {
  return !run.done && !run.ended;
}

/** @param {Run} run */
export function hasFailed(run) {
  return Boolean(run.done ? run.done.failed : run.ended);
}

/**
 * What a live session recorded. Of one whose end nobody told, as the server is gone, it is what came with its blocks; null: nothing.
 * @param {Run} run
 * @returns {LiveRecording | null}
 */
export function recordingOf({ events, done, ended }) {
  if (done) return done.recording?.blocks ? done.recording : null;
  return ended ? recordedSoFar(events) : null;
}

/**
 * @param {BlockEvent[]} events
 * @returns {LiveRecording | null}
 */
export function recordedSoFar(events) {
  const recorded = events.findLast((event) => event.recorded)?.recorded;
  return recorded ? { ...recorded, blocks: events.length } : null;
}

/** @param {Run} run */
export function secondsOf(run) {
  const whole = hasFailed(run) ? undefined : run.done?.seconds;
  return whole ?? run.events.reduce((sum, event) => sum + event.seconds, 0);
}

/**
 * What a block's event is to a run: its `next`, one that is made `again` with all after it, one that is `known`, or `lost`:
 * others are missing before it.
 * @param {Run} run
 * @param {BlockEvent} event
 */
export function placeOf(run, event) {
  if (event.run !== run.run) return "lost";
  if (event.number === run.events.length + 1) return "next";
  const known = run.events[event.number - 1];
  if (known && editionOf(event) > editionOf(known)) return "again";
  return event.number <= run.events.length ? "known" : "lost";
}

// --- the runs of one node, oldest first

const MOST = 32; // of a node that are remembered

/**
 * The runs with one more, the newest; what was known of it goes.
 * @param {Run[]} runs
 * @param {Run} run
 */
export function withNewest(runs, run) {
  return [...runs.filter((other) => other.run !== run.run), run].slice(-MOST);
}

/**
 * The `known` runs with those of the server's `answer`, oldest first too: each is put before what is newer, such as a run that goes
 * on, and in the place of what was known of it if it says more.
 * @param {Run[]} known
 * @param {Run[]} answer
 */
export function mergeRuns(known, answer) {
  const runs = answer.reduceRight((all, run, i) => {
    const at = all.findIndex((other) => other.run === run.run);
    if (at >= 0) {
      return all.map((other, place) =>
        place === at && saysMore(run, other) ? withNewestState(run, other) : other,
      );
    }
    const later = answer.slice(i + 1).map((other) => other.run);
    const next = all.findIndex(
      (other) => later.includes(other.run) || (isGoing(other) && !isGoing(run)),
    );
    return next < 0 ? [...all, run] : [...all.slice(0, next), run, ...all.slice(next)];
  }, known);
  return runs.slice(-MOST);
}

/**
 * A run with what else is known of it: whether it is heard, and its state as it was told last.
 * @param {Run} run
 * @param {Run} known
 */
function withNewestState(run, known) {
  const [now, before] = [run, known].map(({ info }) => info.state);
  const state = isOlder(now, before) ? before : now;
  return { ...run, info: { ...run.info, state }, heard: known.heard };
}

/**
 * Whether a state of a live run was told before another one.
 * @param {LiveState | null | undefined} state
 * @param {LiveState | null | undefined} other
 */
export function isOlder(state, other) {
  return (state?.turn ?? 0) < (other?.turn ?? 0);
}

/**
 * How often a live run was set back before a block was made.
 * @param {BlockEvent | undefined} event
 */
export function editionOf(event) {
  return event?.edition ?? 0;
}

/**
 * Whether an account of a run says more than another one. Of a live run that this page does not hear, the newest does.
 * @param {Run} run
 * @param {Run} other
 */
function saysMore(run, other) {
  if (run.done && !other.done) return true;
  if (run.info.live && !other.done && !other.heard) return true;
  const [newest, known] = [run, other].map(({ events }) => editionOf(events.at(-1)));
  return newest > known || (newest === known && run.events.length > other.events.length);
}

/**
 * The run that a node's strip shows: the newest of its own that made anything, or may yet; undefined: none.
 * @param {Run[]} runs
 * @param {(run: Run) => boolean} isOwn
 */
export function shownOf(runs, isOwn) {
  const own = runs.filter(isOwn);
  return own.findLast((run) => run.events.length || !hasFailed(run)) ?? own.at(-1);
}

/**
 * The runs that are over, but for the one that is shown.
 * @param {Run[]} runs
 * @param {Run | null | undefined} shown
 */
export function earlierOf(runs, shown) {
  return runs.filter((run) => run.run !== shown?.run && !isGoing(run));
}

/**
 * The first block in which two runs differ; undefined if that is not known, or if they do not.
 * @param {Run} run
 * @param {Run} other
 */
export function differsFrom(run, other) {
  const before = run.done?.digests;
  const now = other.done?.digests;
  if (!before || !now) return undefined;
  const at = now.findIndex((digest, i) => digest !== before[i]);
  return at < 0 ? undefined : at + 1;
}

// --- takes side by side

/**
 * The takes of a block that are known, `[take, event]`: that of the run shown, and those made with all else the same as is asked
 * now, though their runs may have broken off later.
 * @param {number} number
 * @param {Run} shown
 * @param {Run[]} others
 * @param {Asked} now
 * @returns {[number, BlockEvent][]}
 */
export function takesKnown(number, shown, others, now) {
  /** @param {Run} run */
  const take = (run) => takesOf(run.takes).get(number) ?? 1;
  /** @type {Map<number, BlockEvent>} */
  const known = new Map();
  const made = shown.events[number - 1];
  if (made) known.set(take(shown), made);
  for (const run of others) {
    const event = run.events.find((block) => block.number === number);
    const isOfBlock = [number, 0].includes(run.info.until ?? 0);
    if (!event || !isOfBlock || known.has(take(run))) continue;
    if (isAlike(run, number, now)) known.set(take(run), event);
  }
  return [...known].sort(([a], [b]) => a - b);
}

/**
 * Whether a run was asked for what is asked now, but for the take of a block and for what comes after it.
 * @param {Run} run
 * @param {number} number
 * @param {Asked} now
 */
export function isAlike(run, number, now) {
  const { info, directions, takes } = run;
  const { signature, kept = "" } = info;
  if (!signature || !now.signature) return false;
  const asked = { signature, directions, takes, kept, shots: placesOfRun(run) };
  return courseOf(asked, number) === courseOf(now, number);
}

/**
 * @param {Asked} asked
 * @param {number} number
 */
function courseOf({ signature, directions, takes, kept, shots }, number) {
  const { rest, router, tau, prompts } = signature ?? {};
  const before = [...takesOf(takes)].filter(([block]) => block < number);
  const letters = directions.slice(0, number).replace(/\.+$/, "");
  const lock = lockAt(number, kept, shots);
  return JSON.stringify([rest, router, tau, prompts, before, letters, lock]);
}
