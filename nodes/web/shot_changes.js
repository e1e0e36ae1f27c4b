// What another board makes anew. A run knows nothing of the others, so its blocks stay as they are wherever it stands, as far as they
// are asked for what they were asked for; but for one that begins with the last frame of another.
import { isSound, keyOf, spoken } from "./shots.js";

/**
 * A run: its key, what it begins with, the frame of the film that is its first, and what its blocks are made by, one text each.
 * @typedef {{ key: string, from: string, frame: number, blocks: string[] }} BoardRun
 */

/** @type {WeakMap<ShotBoard, BoardRun[]>} */
const runsKnown = new WeakMap(); // a board never changes

/**
 * The runs of a board.
 * @param {ShotBoard} board
 */
function runsOf(board) {
  const runs = runsKnown.get(board) ?? newRuns(board.shots);
  runsKnown.set(board, runs);
  return runs;
}

/** @param {Shot[]} shots */
function newRuns(shots) {
  /** @type {BoardRun[]} */
  const runs = [];
  let strength = "";
  for (const [i, shot] of spoken(shots).entries()) {
    const key = keyOf(shots, i);
    if (key) runs.push({ key, from: originOf(shots, i), frame: frameAfter(runs), blocks: [] });
    strength = shot.strength || strength;
    const words = JSON.stringify([shot.prompt, strength]);
    const makers = shot.marks.map((mark) => (mark ? `${mark.letter}${mark.take}` : ""));
    const blocks = makers.map((maker, n) => `${shot.cut && !n ? "cut " : ""}${maker} ${words}`);
    runs.at(-1)?.blocks.push(...blocks);
  }
  return runs;
}

/**
 * The frame of the film behind these runs, of which each shows three fewer if it begins with nothing before it.
 * @param {BoardRun[]} runs
 */
function frameAfter(runs) {
  return runs.reduce((sum, { from, blocks }) => sum + 12 * blocks.length - (from ? 0 : 3), 0);
}

/**
 * What a shot begins with: the key of a run, or the name of a clip and what is shown of it.
 * @param {Shot[]} shots
 * @param {number} i
 */
function originOf(shots, i) {
  const from = shots[i].fresh?.from ?? "";
  const clip = shots.flatMap(({ clips }) => clips).find(({ name }) => name === from);
  return clip ? `${clip.name} ${clip.span}` : from;
}

/**
 * How many first blocks of each run of a board the one before has, by its key, and whether all of the run is the same.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {boolean} [isPlaced] whether blocks follow from their place in the film too, as in a clip that is restyled
 */
function sameBlocks(board, next, isPlaced = false) {
  const before = new Map(runsOf(board).map((run) => [run.key, run]));
  /** @type {Map<string, { count: number, isWhole: boolean }>} */
  const same = new Map();
  for (const { key, from, frame, blocks } of runsOf(next)) {
    const known = before.get(key);
    const isHere = !isPlaced || known?.frame === frame;
    const isOrigin = isHere && known?.from === from && (same.get(from)?.isWhole ?? true);
    const first = blocks.findIndex((block, i) => block !== known?.blocks[i]);
    const count = isOrigin ? (first < 0 ? blocks.length : first) : 0;
    same.set(key, { count, isWhole: count === blocks.length && count === known?.blocks.length });
  }
  return same;
}

/**
 * What another board makes anew: stretches of blocks, as its lines count, and whether all blocks of the board before are still there.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {boolean} [isPlaced] whether blocks follow from their place in the film too
 */
export function changed(board, next, isPlaced = false) {
  const same = sameBlocks(board, next, isPlaced);
  /** @type {{ from: number, to: number }[]} */
  const stretches = [];
  let start = 1;
  let stays = 0;
  for (const { key, blocks } of runsOf(next)) {
    const { count = 0 } = same.get(key) ?? {};
    const from = start + count;
    start += blocks.length;
    stays += count;
    if (from === start) continue;
    const last = stretches.at(-1);
    if (last?.to === from - 1) last.to = start - 1;
    else stretches.push({ from, to: start - 1 });
  }
  const all = runsOf(board).reduce((sum, { blocks }) => sum + blocks.length, 0);
  return { stretches, adds: stays === all };
}

/**
 * How many first blocks another board leaves as they are, where they are.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 */
function unmoved(board, next) {
  const same = sameBlocks(board, next);
  const before = runsOf(board);
  let count = 0;
  for (const [i, { key }] of runsOf(next).entries()) {
    const { count: own = 0, isWhole = false } = same.get(key) ?? {};
    if (before[i]?.key !== key) break;
    count += own;
    if (!isWhole) break;
  }
  return count;
}

/**
 * Whether an edit leaves the first `fixed` blocks alone, which a clip gives or a lock keeps, and makes a video.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {number} fixed
 * @param {number} most
 */
export function allowed(board, next, fixed, most) {
  const marks = next.shots.flatMap((shot) => shot.marks);
  const whole =
    next.shots.length > 0 &&
    next.shots.every((shot) => shot.marks.length) &&
    (next.shots.length < 2 || spoken(next.shots)[0].prompt !== "");
  const isMade = marks.some(Boolean); // one block at least is the run's, not the clip's
  const fits = marks.length >= fixed && marks.length <= most;
  return whole && isMade && fits && isSound(next) && unmoved(board, next) >= fixed;
}

/**
 * The keys of shots that began with the end of another one, and in another board do not.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 */
export function originsLost(board, next) {
  const origins = new Map(runsOf(next).map(({ key, from }) => [key, from]));
  return runsOf(board).flatMap(({ key, from }) => (from && origins.get(key) === "" ? [key] : []));
}
