// What the next run makes again, as far as directions, takes and the number of blocks tell. A block follows from all before
// it, so it is always one block and everything after it.
import { WANTED, letterOf, takesOf } from "./directions.js";
import { fateOf } from "./fates.js";

/**
 * `run`: the finished one, with its `directions`, `takes` and `events`; `next`: `directions`, `takes` and `blocks` of the next.
 * Returns the first block that is made `from` anew (null if none is), their `count`, and about how many `seconds` they take
 * (null if the finished run made no block of a kind that is needed).
 */
export function nextRun(run, next) {
  const from = firstAgain(run, next);
  if (from === null) return { from, count: 0, seconds: 0 };
  return { from, count: next.blocks - from + 1, seconds: estimate(run, next, from) };
}

function firstAgain(run, next) {
  const [before, after] = [takesOf(run.takes), takesOf(next.takes)];
  for (let number = 1; number <= next.blocks; number += 1) {
    const made = run.events[number - 1];
    if (!made || before.get(number) !== after.get(number)) return number;
    const from = againFrom(made, number, letterOf(run.directions, number), letterOf(next.directions, number));
    if (from <= next.blocks) return from;
  }
  return null;
}

/** The block from which on a changed letter has blocks made again; Infinity if it changes nothing. */
function againFrom(made, number, before, after) {
  if (after === before || WANTED[after] === fateOf(made).author) return Infinity;
  // The rejected draft was kept, and takes its block's place.
  return WANTED[after] === "drafter" && made.fate === "remade" ? number + 1 : number;
}

function estimate(run, next, from) {
  const made = run.events.filter((event) => !event.reused);
  const means = new Map(["target", "drafter", undefined].map((author) => [author, meanSeconds(made, author)]));
  let seconds = 0;
  for (let number = from; number <= next.blocks; number += 1) {
    const before = run.events[number - 1];
    seconds += means.get(WANTED[letterOf(next.directions, number)] ?? (before && fateOf(before).author) ?? undefined);
  }
  return Number.isFinite(seconds) ? seconds : null;
}

/** NaN if the author made none; without an author, of all blocks. */
function meanSeconds(events, author) {
  const seconds = events.filter((event) => !author || fateOf(event).author === author).map((event) => event.seconds);
  return seconds.reduce((sum, one) => sum + one, 0) / seconds.length;
}
