// What is done to the shots of a video. Every edit returns another board and changes none. A shot that begins afresh keeps its key, and
// so its noise, wherever it is moved; footage stays before its shot.
import { ROUTER } from "./blocks.js";
import { namesBlock } from "./prompt_lines.js";
import {
  FIRST_KEY,
  allClips,
  keysBefore,
  shotAt,
  spoken,
  startsAfresh,
  startsOf,
  withCuts,
  withPlainFirst,
} from "./shots.js";

export const NEW_BLOCKS = 3; // of a shot that is added

/**
 * @param {ShotBoard} board
 * @param {number} i
 * @param {Partial<Shot>} values
 * @returns {ShotBoard}
 */
function withShot(board, i, values) {
  return {
    ...board,
    shots: board.shots.map((shot, at) => (at === i ? { ...shot, ...values } : shot)),
  };
}

/**
 * A board whose first shot is as it must be, and no shot begins with the end of one that is not before it.
 * @param {ShotBoard} board
 * @param {Shot[]} shots with the key of the one that was the first
 * @param {string} [key] for another one that is the first now, and goes on; the plain one, if no other shot has it
 * @param {boolean[]} [cuts] of the places
 * @returns {ShotBoard}
 */
function settled(board, shots, key = FIRST_KEY, cuts) {
  const [first, ...others] = shots;
  const isFree = shots.every(({ fresh }) => fresh?.key !== FIRST_KEY);
  const begins = first.fresh ?? { key: isFree ? FIRST_KEY : key, from: "" };
  const all = withCuts(withPlainFirst([{ ...first, fresh: begins }, ...others]), cuts);
  return withoutLost({ ...board, shots: all });
}

/**
 * @param {ShotBoard} board
 * @returns {ShotBoard}
 */
function withoutLost({ shots, clips, later }) {
  /**
   * @template {{ fresh: Fresh | null }} T
   * @param {T} line
   * @param {string[]} known
   * @returns {T}
   */
  const freed = (line, known) =>
    !line.fresh?.from || known.includes(line.fresh.from)
      ? line
      : { ...line, fresh: { ...line.fresh, from: "" } };
  const left = shots.map((shot, i) => freed(shot, keysBefore(shots, i)));
  const reached = [...keysBefore(shots, shots.length), ...clips.map(({ name }) => name)];
  const others = later.map((line, i) => {
    const names = later.slice(0, i).flatMap((other) => other.fresh?.key ?? other.clip?.name ?? []);
    return freed(line, [...reached, ...names]);
  });
  return { shots: withPlainFirst(left), clips, later: others };
}

/**
 * The shots with the prompt of each, and the key of the first one, as they are wherever they are moved.
 * @param {ShotBoard} board
 */
function loose({ shots }) {
  const [first, ...others] = spoken(shots);
  return [{ ...first, fresh: first.fresh ?? { key: FIRST_KEY, from: "" } }, ...others];
}

// --- one shot

/**
 * Another prompt for a shot. Without any, it is one with the shot before, unless it has a strength or follows footage; the first one
 * keeps its own.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {string} text
 */
export function sayShot(board, i, text) {
  const shot = board.shots[i];
  if (!text.trim() && (!i || shot.clips.length)) return board;
  // A line that would name a block goes on the line before it.
  const lines = text.trim().split(/\r\n|\r|\n/);
  const prompt = lines.reduce((all, line) => all + (namesBlock(line) ? " " : "\n") + line);
  if (prompt) return withShot(board, i, { prompt });
  if (shot.strength) return withoutLost(withShot(board, i, { cut: false, fresh: null, prompt })); // these need one
  const shots = [...board.shots];
  const [{ marks }] = shots.splice(i, 1);
  shots[i - 1] = { ...shots[i - 1], marks: [...shots[i - 1].marks, ...marks] };
  return withoutLost({ ...board, shots });
}

/**
 * Have a shot begin with a cut, or go on from what is before it; before the first one there is nothing.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {boolean} cut
 */
export function cutShot(board, i, cut) {
  if (!i) return board;
  const { prompt, fresh } = spoken(board.shots)[i];
  return withoutLost(withShot(board, i, { cut, fresh: cut ? null : fresh, prompt }));
}

/**
 * Have a shot begin afresh, by a key; without one, it goes on. The first one always begins afresh.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {string} key
 */
export function freshShot(board, i, key) {
  if (!i) return board;
  const { prompt, cut } = spoken(board.shots)[i];
  const fresh = key ? { key, from: "" } : null;
  return withoutLost(withShot(board, i, { cut: cut && !fresh, fresh, prompt }));
}

/**
 * Have a shot that begins afresh begin with the last frame of an earlier one; without a key, with nothing.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {string} from
 */
export function beginFrom(board, i, from) {
  const { fresh } = board.shots[i];
  return fresh ? withShot(board, i, { fresh: { ...fresh, from } }) : board;
}

/**
 * Give a shot a number of blocks; it grows and shrinks at its end, and the shots after it move.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {number} count
 */
export function lengthenShot(board, i, count) {
  const { marks } = board.shots[i];
  const added = Array.from({ length: Math.max(0, count - marks.length) }, newMark);
  return withShot(board, i, { marks: [...marks.slice(0, count), ...added] });
}

/**
 * Give the first block of a shot that the run makes another take; without a number, its next.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {number} [first]
 * @param {number} [take]
 */
export function retakeShot(board, i, first = 0, take = 0) {
  const marks = board.shots[i].marks.map((mark, block) =>
    mark && block === first ? { ...mark, take: take || mark.take + 1 } : mark,
  );
  return withShot(board, i, { marks });
}

/** @returns {Mark} */
function newMark() {
  return { letter: ROUTER, take: 1 };
}

// --- the row of shots

/**
 * Add a shot at a place, with the prompt of the one beside it, until it has one of its own. With a key it begins afresh; else it goes on
 * with the shot before, so the first one needs a key.
 * @param {ShotBoard} board
 * @param {number} at
 * @param {string} [key]
 */
export function insertShot(board, at, key = "") {
  const { prompt } = spoken(board.shots)[Math.max(0, at - 1)];
  const fresh = key ? { key, from: "" } : null;
  const marks = Array.from({ length: NEW_BLOCKS }, newMark);
  const shot = { clips: [], cut: false, fresh, strength: "", prompt, marks };
  return withAdded(board, at, shot);
}

/**
 * Add a shot behind the last one, which begins afresh if that one does.
 * @param {ShotBoard} board
 * @param {string} key
 */
export function appendShot(board, key) {
  const { shots } = board;
  const isFresh = startsAfresh(shots, shots.length - 1, shots.length);
  return insertShot(board, shots.length, isFresh ? key : "");
}

/**
 * Add a shot like another one behind it, by the same makers and takes; by a key of its own if that one begins afresh.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {string} key
 */
export function cloneShot(board, i, key) {
  const shot = loose(board)[i];
  const fresh = shot.fresh && { ...shot.fresh, key };
  const marks = shot.marks.filter(Boolean); // not those of a clip that is continued
  const clone = { ...shot, clips: [], fresh, marks };
  return withAdded(board, i + 1, clone);
}

/**
 * @param {ShotBoard} board
 * @param {number} at
 * @param {Shot} shot
 */
function withAdded(board, at, shot) {
  const behind = loose(board).slice(at); // which may have had the words of the shot before
  return settled(board, [...board.shots.slice(0, at), shot, ...behind]);
}

/**
 * Have a shot begin at a block, as the lines count; it goes on with the one before until it has a prompt of its own.
 * @param {ShotBoard} board
 * @param {number} from
 */
export function splitShot(board, from) {
  const i = shotAt(board, from);
  const shot = board.shots[i];
  const at = from - startsOf(board.shots)[i];
  if (!at) return board;
  const { prompt } = spoken(board.shots)[i];
  const marks = shot.marks.slice(at);
  const rest = { clips: [], cut: false, fresh: null, strength: "", prompt, marks };
  const begin = { ...shot, marks: shot.marks.slice(0, at) };
  return { ...board, shots: board.shots.toSpliced(i, 1, begin, rest) };
}

/**
 * Have a shot stand in another place. Its blocks keep their makers and takes; cuts belong to the place, as does the noise of shots that
 * go on.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {number} to
 * @param {string} key for a shot that went on, and is the first now
 */
export function moveShot(board, i, to, key) {
  const shots = loose(board);
  const cuts = board.shots.map(({ cut }) => cut);
  return settled(board, shots.toSpliced(i, 1).toSpliced(to, 0, shots[i]), key, cuts);
}

/**
 * Take a shot away, with its blocks. Those that went on with it are its run now; else the shots beside it are of two scenes if there
 * was a cut on either side of it. Footage before it stays, and so does the only shot.
 * @param {ShotBoard} board
 * @param {number} i
 */
export function removeShot(board, i) {
  if (board.shots.length < 2) return board;
  const shots = loose(board);
  const { clips, cut, fresh } = shots[i];
  const left = shots.toSpliced(i, 1);
  if (i === left.length) return settled({ ...board, clips: [...clips, ...board.clips] }, left);
  const next = left[i];
  left[i] = {
    ...next,
    clips: [...clips, ...next.clips],
    cut: cut || next.cut,
    fresh: next.fresh ?? fresh,
  };
  return settled(board, left);
}

// --- footage, which stands before a shot, or after the last one

/**
 * @param {ShotBoard} board
 * @param {number} at the shot that it stands before; after the last one their number
 */
export function clipsBefore({ shots, clips }, at) {
  return at < shots.length ? shots[at].clips : clips;
}

/**
 * Have other footage before a shot, or after the last one.
 * @param {ShotBoard} board
 * @param {number} at
 * @param {Footage[]} clips
 */
export function setClips(board, at, clips) {
  return withoutLost(
    at < board.shots.length ? withShot(board, at, { clips }) : { ...board, clips },
  );
}

/**
 * Show another clip before a shot, or after the last one: the next that SDVG Start has.
 * @param {ShotBoard} board
 * @param {number} at
 */
export function addClip(board, at) {
  const names = allClips(board).map(({ name }) => name);
  let number = 1;
  while (names.includes(`#clip${number}`)) number += 1;
  return setClips(board, at, [...clipsBefore(board, at), { name: `#clip${number}`, span: "" }]);
}

/**
 * Have footage be called otherwise, or another part of it shown; shots that begin with its last frame do still.
 * @param {ShotBoard} board
 * @param {number} at
 * @param {number} n which of those there
 * @param {Footage} clip
 */
export function editClip(board, at, n, clip) {
  const clips = clipsBefore(board, at);
  /**
   * @template {{ fresh: Fresh | null }} T
   * @param {T} line
   * @returns {T}
   */
  const renamed = (line) =>
    line.fresh?.from === clips[n].name
      ? { ...line, fresh: { ...line.fresh, from: clip.name } }
      : line;
  const { shots, later } = board;
  const all = { ...board, shots: shots.map(renamed), later: later.map(renamed) };
  return setClips(all, at, clips.with(n, clip));
}

/**
 * Move footage by one place: past other footage, or to the next shot that begins afresh, or to the end.
 * @param {ShotBoard} board
 * @param {number} at
 * @param {number} n which of those there
 * @param {number} by
 */
export function moveClip(board, at, n, by) {
  const clips = clipsBefore(board, at);
  const left = clips.toSpliced(n, 1);
  if (clips[n + by]) return setClips(board, at, left.toSpliced(n + by, 0, clips[n]));
  const { shots } = board;
  const places = [...shots.keys(), shots.length].filter(
    (place) => place === 0 || !shots[place] || shots[place].fresh,
  );
  const to = places[places.indexOf(at) + by];
  if (to === undefined) return board;
  const others = clipsBefore(board, to);
  const there = by < 0 ? [...others, clips[n]] : [clips[n], ...others];
  return setClips(setClips(board, at, left), to, there);
}
