// One run, as far as it is known, and what the next one makes again: always one block and everything after it, for a block follows
// from all before it.
import { ROUTER, WANTED, fateOf, letterOf, takeOf, takesOf } from "./blocks.js";

export class RunLog {
  /** `info`: the event `sdvg.run`; `done`: the event `sdvg.done`, or null. */
  constructor(info, events = [], done = null) {
    const { run, of, directions = "", takes = "" } = info;
    Object.assign(this, { info, run, of, directions, takes, events, done });
    this.ended = false; // without a word of how
    this.stopping = false;
  }

  /** From the answer to /sdvg/runs. */
  static fromServer({ events, done, ...info }) {
    return new RunLog(info, events, done);
  }

  /** From a node's output, where the first and the last event of the run are one. */
  static fromOutput(all, told = {}) {
    const { run, node, workflow, of } = all.at(-1);
    const events = all.filter((event) => event.run === run); // with a list on an input, the output has several runs
    const info = { run, node, workflow, of, ...told };
    return new RunLog(info, events, { blocks: events.length, of: info.of, stopped: false, speed_up: null, ...told });
  }

  get going() {
    return !this.done && !this.ended;
  }

  get failed() {
    return Boolean(this.done ? this.done.failed : this.ended);
  }

  get seconds() {
    return (this.failed ? null : this.done?.seconds) ?? this.events.reduce((sum, event) => sum + event.seconds, 0);
  }

  /** What a block's event is to this run: its `next`, one that is `known`, or `lost`: others are missing before it. */
  place(event) {
    if (event.run !== this.run) return "lost";
    if (event.number === this.events.length + 1) return "next";
    return event.number <= this.events.length ? "known" : "lost";
  }

  /** Whether another account of this run is to be shown in place of this one. */
  yieldsTo(other) {
    return other.events.length > this.events.length || Boolean(other.done && !this.done);
  }
}

// --- the runs of one node, oldest first

const MOST = 32; // of a node that are remembered

/** The runs with one more, the newest; what was known of it goes. */
export function withNewest(runs, log) {
  return [...runs.filter(({ run }) => run !== log.run), log].slice(-MOST);
}

/**
 * The `known` runs with those of the server's `answer`, oldest first too: each is put before what is newer, such as a run that goes
 * on, and in the place of what was known of it if it says more.
 */
export function mergeRuns(known, answer) {
  const runs = answer.reduceRight((all, log, i) => {
    const at = all.findIndex(({ run }) => run === log.run);
    if (at >= 0) return all.map((before, place) => (place === at && before.yieldsTo(log) ? log : before));
    const later = answer.slice(i + 1).map(({ run }) => run);
    const next = all.findIndex((other) => later.includes(other.run) || (other.going && !log.going));
    return next < 0 ? [...all, log] : [...all.slice(0, next), log, ...all.slice(next)];
  }, known);
  return runs.slice(-MOST);
}

/** The run that a node's strip shows: the newest of its own; undefined: none. */
export function shownOf(runs, isOwn) {
  return runs.filter(isOwn).at(-1);
}

/** The runs that have a result, but for the one that is shown. */
export function earlierOf(runs, shown) {
  return runs.filter((log) => log.run !== shown?.run && log.done && !log.failed);
}

// --- the next run

const SILENT = { from: null, count: 0, seconds: 0, old: null };

/**
 * `run`: the finished one; `next`: `directions`, `takes`, `blocks` and `lock` of the next; `outlook`, by the server: `now`, the signature
 * of what is set, `loading`, the seconds until the run's models are loaded, and `decoding`, how many of its first 0, 1, 2 ... blocks
 * are decoded again; and whether the seed is `moving`.
 * Returns the first block that is made `from` anew (null if none is), their `count`, and about how many `seconds` it takes
 * (null if that is not known); `all`: everything is made again; `atMost`: perhaps less, with `unsure` as frames that were not scored
 * decide. Not `known`: nothing can be said. `old`: the first block that was made for something else than is asked of it now, such as
 * another prompt; not for another seed or model, which are the whole video's.
 */
export function nextRun(run, next, outlook) {
  const kept = keptBy(next.lock);
  const told = foretell(run, { ...next, kept }, outlook);
  const first = kept + 1; // blocks before it stay
  const rest = { from: first, count: next.blocks - first + 1, seconds: null };
  if (holdsLock(run, next.lock) === false) return { known: told.known, atMost: true, ...rest, old: 1 };
  if (!told.from || told.from >= first) return told;
  return { ...told, all: false, atMost: told.atMost || told.all, ...rest };
}

/** How many blocks a lock such as "5:0123456789abcdef" keeps. */
export function keptBy(lock) {
  return parseInt(lock, 10) || 0;
}

/** Whether the first blocks of a run are those that a lock keeps; undefined without a lock, or if that is not known. */
export function holdsLock(run, lock) {
  const digest = keptBy(lock) ? run.done?.digests?.[keptBy(lock) - 1] : undefined;
  return digest && digest === lock.trim().split(":")[1];
}

/** Whether the next run certainly makes a block again. */
export function isAgain(next, number) {
  return Boolean(next.from) && number >= next.from && !next.atMost;
}

/** Whether the picture that is shown of a block was made for something else than is asked of it now. */
export function isOld(next, number) {
  return Boolean(next.old) && number >= next.old;
}

function foretell(run, next, { now, loading, decoding, moving }) {
  const then = run.info.signature;
  if (!then || !now || loading === undefined || now.wired !== then.wired) return SILENT;
  const others = now.made.filter((one) => one.run !== run.run);
  const asked = { ...next, prompts: now.prompts, positive: now.positive };
  const sure = firstChange(run, { ...asked, tau: undefined }); // whatever the scores decide
  if (moving || now.rest !== then.rest || now.router !== then.router) {
    const atMost = !moving && (now.rest === then.rest || others.length > 0);
    return { known: true, all: true, atMost, from: 1, count: next.blocks, seconds: null, old: sure.old };
  }
  const { old, from } = firstChange(run, { ...asked, tau: now.tau });
  if (now.all === then.all && old === null && from === null) return { known: true, ...SILENT };
  const count = from === null ? 0 : next.blocks - from + 1;
  const asks = ({ directions, takes, prompts }) => [letterOf(directions, from), takeOf(takes, from), promptAt(run, { prompts }, from)].join();
  const unsure = from !== null && run.events.slice(Math.max(from - 2, 0), from).some((made) => undecided(made, now.tau, run.info.margin));
  const known = count > 0 && others.some((one) => one.of >= from && asks(one) === asks(asked));
  const seconds = estimate(run, { ...next, tau: now.tau }, from ?? next.blocks + 1, { loading, decoding });
  return { known: true, atMost: known || unsure, unsure, from, count, seconds, old: unsure ? sure.old : old };
}

/** The first block that is another one in the next run, `old`, and the first that is made anew, `from`; null: none. */
function firstChange(run, next) {
  const [before, after] = [takesOf(run.takes), takesOf(next.takes)];
  const first = next.kept + 1;
  if (keptBy(run.info.kept) >= first) return { old: first, from: first }; // some blocks are kept no longer
  for (let number = first; number <= next.blocks; number += 1) {
    const made = run.events[number - 1];
    const here = { old: number, from: number };
    if (!made) return { old: null, from: number };
    if (before.get(number) !== after.get(number)) return here;
    if (promptAt(run, run.info.signature, number) !== promptAt(run, next, number)) return here;
    const letter = letterOf(next.directions, number);
    const same = letter === letterOf(run.directions, number);
    const author = same ? gateAuthor(made, letter, next.tau, run.info.margin) ?? fateOf(made).author : WANTED[letter];
    if (author === fateOf(made).author) continue;
    const atHand = author === "drafter" && made.fate === "remade"; // the rejected draft
    if (!atHand) return here;
    return { old: number, from: number < next.blocks ? number + 1 : null };
  }
  return { old: null, from: null };
}

/** The prompt of a block: a scheduled one, or that of the whole video. Schedules count the blocks of a continued clip too. */
function promptAt({ info }, { prompts, positive }, number) {
  return prompts.filter(([from]) => from <= number + (info.before ?? 0)).at(-1)?.[1] ?? positive;
}

/** The model that a reward gate with this tau chooses by the score that is known; undefined if another decides. */
function gateAuthor(made, letter, tau, margin) {
  const { fate, score } = made;
  const scored = letter === ROUTER && ["kept", "remade"].includes(fate) && Number.isFinite(score) && Number.isFinite(tau);
  if (!scored) return undefined;
  if (undecided(made, tau, margin)) return fate === "kept" ? "target" : "drafter"; // perhaps
  return score >= Math.fround(tau) ? "drafter" : "target";
}

/** Whether the frames of a draft that a cascade left unscored decide at this tau, so that the next run scores them. */
function undecided({ score, unscored }, tau, margin) {
  if (!unscored || !Number.isFinite(score) || !Number.isFinite(tau)) return false;
  return score >= Math.fround(tau) && !(score >= Math.fround(tau) + margin);
}

/** With what the blocks before `from` take to be decoded again, as many as the server says in `decoding`. */
function estimate(run, next, from, { loading, decoding }) {
  const made = run.events.filter((event) => !event.reused);
  const again = decoding?.[from - 1 + (run.info.before ?? 0)] ?? from - 1;
  const means = new Map(["target", "drafter", undefined].map((author) => [author, mean(made, "seconds", author)]));
  let seconds = loading + (again ? again * mean(made, "decode") : 0);
  for (let number = from; number <= next.blocks; number += 1) {
    const before = run.events[number - 1];
    const letter = letterOf(next.directions, number);
    const guess = before && (gateAuthor(before, letter, next.tau, run.info.margin) ?? fateOf(before).author);
    seconds += means.get(WANTED[letter] ?? guess ?? undefined);
  }
  return Number.isFinite(seconds) ? seconds : null;
}

/** NaN if the author made none; without an author, of all blocks. */
function mean(events, name, author) {
  const values = events.filter((event) => !author || fateOf(event).author === author).map((event) => event[name]);
  return values.reduce((sum, one) => sum + one, 0) / values.length;
}
