// What another board makes anew. A run knows nothing of the others, so its blocks stay as they are wherever it stands, as far as they
// are asked for what they were asked for; but for one that begins with the last frame of another.
import { headShot, isSound, keyOf, spoken, startsOf } from "./shots.js";

/**
 * A run: its key, what it begins with, the frame of the film that is its first, and what its blocks are made by, one text each.
 * @typedef {{ key: string, from: string, frame: number, blocks: string[] }} BoardRun
 */

/**
 * What blocks follow from: locks of shots, and whether their place in the film, as in a clip that is restyled.
 * @typedef {{ locks?: Held["locks"], isPlaced?: boolean }} Kept
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
 * How many first blocks of each run of a board the one before has, by its key, and whether all of the run is the same. What follows from
 * locked blocks does not follow from what the run began with.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Kept} kept
 */
function sameBlocks(board, next, { locks = [], isPlaced = false }) {
  const before = new Map(runsOf(board).map((run) => [run.key, run]));
  /** @type {Map<string, { count: number, isWhole: boolean }>} */
  const same = new Map();
  for (const { key, from, frame, blocks } of runsOf(next)) {
    const known = before.get(key);
    const isHere = !isPlaced || known?.frame === frame;
    const first = blocks.findIndex((block, i) => block !== known?.blocks[i]);
    const isAlike = isHere && known?.from === from;
    const own = isAlike ? (first < 0 ? blocks.length : first) : 0;
    const locked = locks.find((lock) => lock.key === key)?.blocks ?? Infinity;
    const begins = own >= locked || (same.get(from)?.isWhole ?? true);
    const count = begins ? own : 0;
    same.set(key, { count, isWhole: count === blocks.length && count === known?.blocks.length });
  }
  return same;
}

/**
 * What another board makes anew: stretches of blocks, as its lines count, and whether all blocks of the board before are still there.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Kept} [kept]
 */
export function changed(board, next, kept = {}) {
  const same = sameBlocks(board, next, kept);
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
  return { stretches, adds: stays === lengthOf(board) };
}

/**
 * Whether every shot that has a lock is in another board too, or gone with all its blocks.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Held["locks"]} locks
 */
export function keepsRuns(board, next, locks) {
  const left = runsOf(next).map(({ key }) => key);
  const gone = runsOf(board).filter(
    ({ key }) => !left.includes(key) && locks.some((lock) => lock.key === key),
  );
  const blocks = gone.reduce((sum, run) => sum + run.blocks.length, 0);
  return !gone.length || lengthOf(next) <= lengthOf(board) - blocks;
}

/**
 * Whether every locked block that another board has is made by what it was made by.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Held} held
 */
function keepsLocked(board, next, { before, locks }) {
  const same = sameBlocks(board, next, { locks });
  return runsOf(board).every(({ key, blocks }, i) => {
    const locked = locks.find((lock) => lock.key === key)?.blocks ?? 0;
    const stay = same.get(key)?.count ?? Infinity;
    return !locked || stay >= Math.min(locked + (i ? 0 : before), blocks.length);
  });
}

/**
 * How many blocks a board has.
 * @param {ShotBoard} board
 */
function lengthOf(board) {
  return runsOf(board).reduce((sum, { blocks }) => sum + blocks.length, 0);
}

/**
 * Whether the blocks that a clip gives are where they were.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Held} held
 */
function keepsGiven(board, next, { before, locks }) {
  if (!before) return true;
  const [first] = runsOf(next);
  const stay = sameBlocks(board, next, { locks }).get(first?.key)?.count ?? 0;
  return first?.key === runsOf(board)[0].key && stay >= before;
}

/**
 * The last block, as the lines count, of those of a shot's run that stay: a clip gives them, or they are locked.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {Held} held
 */
export function fixedTo({ shots }, i, { before, locks }) {
  const head = headShot(shots, i);
  const locked = locks.find(({ key }) => key === keyOf(shots, head))?.blocks ?? 0;
  return startsOf(shots)[head] - 1 + (head ? 0 : before) + locked;
}

/**
 * Whether an edit leaves alone what a clip gives and a lock keeps, and makes a video.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Held} held
 * @param {number} most blocks
 */
export function allowed(board, next, held, most) {
  const marks = next.shots.flatMap((shot) => shot.marks);
  const whole =
    next.shots.length > 0 &&
    next.shots.every((shot) => shot.marks.length) &&
    (next.shots.length < 2 || spoken(next.shots)[0].prompt !== "");
  const isMade = marks.some(Boolean); // one block at least is the run's, not the clip's
  const keeps =
    keepsGiven(board, next, held) &&
    keepsRuns(board, next, held.locks) &&
    keepsLocked(board, next, held);
  return whole && isMade && marks.length <= most && isSound(next) && keeps;
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
