// Locks: first blocks of shots, which stay as a run made them. As text they are "5:0123456789abcdef" for the first shot, or several with
// the key of each, "0=5:0123456789abcdef, k3f=2:...". The server's reading is nodes/page/locks.py.
import { FIRST_KEY, allRuns, keyOf, placesOfRun } from "./shots.js";

const LOCK = /^(?:([a-z0-9]{1,12})=)?([1-9][0-9]{0,5}):([0-9a-z]+)$/;

/**
 * The locks of a text; none for one that the server refuses.
 * @param {string} text
 * @param {string} firstKey of the shot that a lock without a key is of
 * @returns {ShotLock[]}
 */
export function readLocks(text, firstKey) {
  const matches = text.trim() ? text.split(",").map((part) => part.trim().match(LOCK)) : [];
  const locks = matches.flatMap((match) =>
    match
      ? [{ key: match[1] ? `#${match[1]}` : firstKey, blocks: Number(match[2]), digest: match[3] }]
      : [],
  );
  const keys = new Set(locks.map(({ key }) => key));
  return keys.size === matches.length ? locks : [];
}

/**
 * Locks as text. That of the first shot has no key, unless its line gives one.
 * @param {ShotLock[]} locks
 * @param {string} firstKey
 */
export function writeLocks(locks, firstKey) {
  return locks
    .map(({ key, blocks, digest }) => {
      const isPlain = key === firstKey && key === FIRST_KEY;
      return `${isPlain ? "" : `${key.slice(1)}=`}${blocks}:${digest}`;
    })
    .join(", ");
}

/**
 * The locks of what is asked.
 * @param {Inputs} inputs
 */
export function locksOf({ lock, shots }) {
  return readLocks(lock, shots[0][0]);
}

/**
 * The blocks of the video that are locked.
 * @param {Inputs} inputs
 * @returns {Stretch[]}
 */
export function lockedIn(inputs) {
  return locksOf(inputs).flatMap(({ key, blocks }) => {
    const shot = inputs.shots.find(([other]) => other === key);
    if (!shot) return [];
    const [, first, count] = shot;
    return [{ from: first, to: first - 1 + Math.min(blocks, count) }];
  });
}

/**
 * @param {number} number
 * @param {Inputs} inputs
 */
export function isLocked(number, inputs) {
  return lockedIn(inputs).some(({ from, to }) => from <= number && number <= to);
}

/**
 * The first block of the shot that a block is in.
 * @param {number} number
 * @param {Inputs} inputs
 */
export function beginOf(number, { shots }) {
  return shotOf(number, shots)[1];
}

/**
 * @param {number} number
 * @param {RunPlace[]} shots
 */
function shotOf(number, shots) {
  return shots.findLast(([, first]) => first <= number) ?? shots[0];
}

/**
 * What locks a shot up to a block: the text of all locks then, and of this one; and the first of the blocks that was made for something
 * else than is asked now. Null if the run that is shown does not have them there, or if they are locked already.
 * @param {number} number
 * @param {Inputs} inputs
 * @param {Run | null} run
 * @param {Forecast | null} forecast
 */
export function lockFor(number, inputs, run, forecast) {
  const [key, first] = shotOf(number, inputs.shots);
  const shots = run ? placesOfRun(run) : [];
  const isThere = shots.some(
    ([other, at, count]) => other === key && at === first && number < first + count,
  );
  const digest = isThere ? run?.done?.digests?.[number - 1] : undefined;
  if (!digest || number > inputs.blocks || isLocked(number, inputs)) return null;
  const lock = { key, blocks: number + 1 - first, digest };
  const [[firstKey]] = inputs.shots;
  const old = forecast?.old.find((block) => first <= block && block <= number) ?? null;
  const all = writeLocks(withLock(locksOf(inputs), key, lock), firstKey);
  return { lock: all, part: writeLocks([lock], firstKey), old };
}

/**
 * What gives up the lock of a block and of those of its shot after it, as they follow from it: the blocks that are free then, and the text
 * of the locks that are left, and of this one; all of it if the run that is shown does not have the blocks before. Null if the shot has no
 * lock.
 * @param {number} number
 * @param {Inputs} inputs
 * @param {Run | null} run
 */
export function unlockFor(number, inputs, run) {
  const [key, first, count] = shotOf(number, inputs.shots);
  const locks = locksOf(inputs);
  const lock = locks.find((other) => other.key === key);
  if (!lock) return null;
  const blocks = number - first; // that stay
  const digest = digestOf(run, key, lock.blocks) === lock.digest && digestOf(run, key, blocks);
  const left = digest && blocks < lock.blocks ? { key, blocks, digest } : null;
  const [[firstKey]] = inputs.shots;
  return {
    from: left ? number : first,
    to: first - 1 + Math.min(lock.blocks, count),
    lock: writeLocks(withLock(locks, key, left), firstKey),
    part: left ? writeLocks([left], firstKey) : "",
  };
}

/**
 * The digest of the first blocks of a shot, as a run made them.
 * @param {Run | null} run
 * @param {string} key
 * @param {number} blocks
 */
function digestOf(run, key, blocks) {
  const [, first = 0, count = 0] = run
    ? (placesOfRun(run).find(([other]) => other === key) ?? [])
    : [];
  return blocks < 1 || blocks > count ? undefined : run?.done?.digests?.[first - 2 + blocks];
}

/**
 * The locks with another one of a shot; null: none.
 * @param {ShotLock[]} locks
 * @param {string} key
 * @param {ShotLock | null} lock
 */
function withLock(locks, key, lock) {
  const isNew = locks.every((other) => other.key !== key);
  const all = isNew && lock ? [...locks, lock] : locks;
  return all.flatMap((other) => (other.key === key ? (lock ?? []) : other));
}

/**
 * The text of the locks without those of shots that a video does not have; null if it has them all.
 * @param {Inputs} inputs
 */
export function withoutStrays(inputs) {
  const locks = locksOf(inputs);
  const left = locks.filter(({ key }) => inputs.shots.some(([other]) => other === key));
  return left.length < locks.length ? writeLocks(left, inputs.shots[0][0]) : null;
}

/**
 * The text of the locks as a board is in the place of another one: each shot keeps its lock, and one that is gone has none.
 * @param {string} text
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 */
export function carriedLocks(text, board, next) {
  const locks = readLocks(text, keyOf(board.shots, 0) ?? FIRST_KEY);
  if (!locks.length) return text;
  const keys = allRuns(next);
  const gone = allRuns(board).filter((key) => !keys.includes(key));
  const left = locks.filter(({ key }) => !gone.includes(key));
  return writeLocks(left, keyOf(next.shots, 0) ?? FIRST_KEY);
}

/**
 * The lock of the shot that a block is in, as a text that is the same for the same lock.
 * @param {number} number
 * @param {string} text
 * @param {RunPlace[]} shots
 */
export function lockAt(number, text, shots) {
  const [key] = shotOf(number, shots);
  return JSON.stringify(readLocks(text, shots[0][0]).find((lock) => lock.key === key) ?? null);
}
