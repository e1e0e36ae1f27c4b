// What a strip shows, worked out from what is asked of the next run, from the run that is shown, and from the server's forecast.
import { ROUTER, letterOf, secondOf, takesOf } from "./blocks.js";
import { isLocked, lockedIn } from "./locks.js";
import { isGoing } from "./runs.js";

const STAYS = "s";
const CHANGES = "c";
const MAY_CHANGE = "m";

/**
 * A forecast where something is drawn as the run is queued: nobody knows.
 * @param {Forecast} forecast
 * @returns {Forecast}
 */
export function drawnForecast({ blocks, old }) {
  return { blocks: MAY_CHANGE.repeat(blocks.length), old, seconds: null };
}

/**
 * Whether the next run makes nothing, and has other pictures than the run that is shown: those of an earlier one.
 * @param {Forecast | null} forecast
 * @param {Run | null} run
 * @param {Signature | undefined} now
 */
export function bringsBack(forecast, run, now) {
  if (!forecast || madeNext(forecast).length) return false;
  const before = run?.info.signature;
  return forecast.old.length > 0 || Boolean(before && now && before.rest !== now.rest);
}

/**
 * The stretches of blocks that the next run makes, or may.
 * @param {Pick<Forecast, "blocks">} forecast
 * @returns {Stretch[]}
 */
export function madeNext({ blocks }) {
  const stretches = blocks.matchAll(new RegExp(`[^${STAYS}]+`, "g"));
  return [...stretches].map(({ 0: { length }, index }) => ({
    from: index + 1,
    to: index + length,
  }));
}

/**
 * Whether that is certain.
 * @param {Forecast} forecast
 */
export function isCertain({ blocks }) {
  return !blocks.includes(MAY_CHANGE);
}

/**
 * The stretches of blocks that are not locked.
 * @param {Inputs} inputs
 */
export function freeBlocks(inputs) {
  const locked = lockedIn(inputs);
  const letters = Array.from({ length: inputs.blocks }, (_, i) =>
    locked.some(({ from, to }) => from <= i + 1 && i + 1 <= to) ? STAYS : CHANGES,
  );
  return madeNext({ blocks: letters.join("") });
}

/**
 * Whether the next run is to end at a block that it does not make, which the server refuses.
 * @param {Inputs} inputs
 */
export function isUntilWrong(inputs) {
  const { until, blocks } = inputs;
  return until > 0 && (until > blocks || isLocked(until, inputs));
}

/**
 * Whether the picture that is shown of a block was made for something else than is asked of it now.
 * @param {Forecast | null} forecast
 * @param {number | null} number
 */
export function isOld(forecast, number) {
  return Boolean(number && forecast?.old.includes(number));
}

/**
 * Whether the next run certainly makes a block.
 * @param {Forecast | null} forecast
 * @param {number} number
 */
export function isAgain(forecast, number) {
  return forecast?.blocks[number - 1] === CHANGES;
}

/**
 * The block whose picture stands for a shot: the last that the run made by the shot's line, in its place or else where it stood.
 * If the run made none by it, the last in its place that no other shot's line made: the shot has other words. Where nobody knows the
 * lines, it is the last in its place.
 * @param {{ first: number, last: number, before: number }} shot its blocks, and how many of a clip the lines count before them
 * @param {Run} run
 * @param {Signature | null | undefined} now of what is set
 */
export function pictureOf({ first, last, before }, run, now) {
  const then = run.info.signature;
  /** @param {BlockEvent} event */
  const isInPlace = ({ number }) => number >= first && number <= last;
  if (!then || !now) return run.events.findLast(isInPlace);
  /** @param {BlockEvent} event */
  const lineOf = ({ number }) => lineAt(then, number + before);
  const line = lineAt(now, first + before);
  const own = run.events.filter((event) => lineOf(event) === line);
  const lines = [now.positive, ...now.prompts.map(([, known]) => known)];
  const ownerless = run.events.filter((event) => !lines.includes(lineOf(event)));
  return own.findLast(isInPlace) ?? own.at(-1) ?? ownerless.findLast(isInPlace);
}

/**
 * The hash of the line that a block is made by, as the lines count.
 * @param {Signature} signature
 * @param {number} block
 */
export function lineAt({ prompts, positive }, block) {
  return prompts.findLast(([from]) => from <= block)?.[1] ?? positive;
}

/**
 * @param {Inputs} inputs
 * @param {Run | null} run
 * @param {Forecast | null} forecast
 * @returns {Square[]}
 */
export function squaresOf(inputs, run, forecast) {
  const { directions, start } = inputs;
  const isLive = livesIn(run);
  const blocks = isLive ? (run?.events.length ?? 0) : inputs.blocks; // as many as can be asked for something
  const of = Math.max(blocks, lengthOf(run));
  const takes = takesOf(inputs.takes);
  const locked = lockedIn(inputs);
  return Array.from({ length: of }, (_, i) => {
    const number = i + 1;
    const usable = number <= blocks;
    return {
      number,
      of,
      event: run?.events[i],
      join: joinAt(run, number),
      letter: usable && !isLive ? letterOf(directions, number) : ROUTER,
      take: (isLive ? run?.events[i]?.take : takes.get(number)) ?? 1,
      again: isAgain(forecast, number),
      uncertain: forecast?.blocks[i] === MAY_CHANGE,
      old: usable && isOld(forecast, number),
      kept: locked.some(({ from, to }) => from <= number && number <= to),
      usable,
      from: secondOf(number, start),
      isAdded: start.clip && start.clipSeconds === null,
    };
  });
}

/**
 * Whether a run is a live session that goes on.
 * @param {Run | null} run
 */
export function livesIn(run) {
  return Boolean(run?.info.live && isGoing(run));
}

/**
 * How many blocks a run has squares for: a live session those that are made, and the next one.
 * @param {Run | null} run
 */
function lengthOf(run) {
  if (!run?.info.live) return run?.of ?? 0;
  return run.events.length + (isGoing(run) ? 1 : 0);
}

/**
 * The join at a block that begins a shot.
 * @param {Run | null} run
 * @param {number} number
 */
export function joinAt(run, number) {
  return run?.done?.joins?.[number];
}

/**
 * How many blocks of a clip come before the run's, which the lines of a prompt count too; null before the first run.
 * @param {VideoStart} start
 * @param {Run | null} run
 */
export function clipBlocks(start, run) {
  const known = run?.info.before ?? 0;
  if (start.clip) return known || null;
  return start.unknown ? known : 0;
}

/**
 * The number of another take of a block: one more than those that exist.
 * @param {number[]} known
 */
export function nextTake(known) {
  return Math.max(1, ...known) + 1;
}

/**
 * How high a node is as a part of its strip opens and closes, on ComfyUI's canvas; Nodes 2.0 measures by itself.
 *
 * `height`: of the node, `least`: that it needs once the part is `open` or closed, `usual`: of the part, `grown`: by how much the node
 * grew as the part was opened, undefined if it was opened in Nodes 2.0 or saved so. Returns the node's height and what it has grown.
 * @param {{ height: number, least: number, usual: number, grown?: number, open: boolean }} room
 */
export function roomFor({ height, least, usual, grown, open }) {
  if (open)
    return {
      height: Math.max(height, least),
      grown: least > height ? least - height : usual,
    };
  return { height: Math.max(height - (grown ?? usual), least), grown: undefined };
}
