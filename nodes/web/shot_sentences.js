// What cards and their menus say of shots, and of an edit.
import { changed } from "./shot_changes.js";
import { countAfresh, keyOf, tailShot } from "./shots.js";
import { stretchesText, text } from "./words.js";

/**
 * What an edit makes again, and by how much it changes the film's length, though it has as many blocks.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 * @param {Held & { isPlaced: boolean }} film its blocks of a clip, which the lines count too, its locks, and whether a clip is restyled
 */
export function costText(board, next, { before, ...kept }) {
  const { stretches, adds } = changed(board, next, kept);
  const ofRun = stretches.map(({ from, to }) => ({ from: from - before, to: to - before }));
  const blocks = stretchesText(ofRun);
  const act = adds ? text("adds", { blocks }) : text("remakes", { blocks });
  const parts = [blocks && act, lengthText(board.shots, next.shots)];
  return parts.filter(Boolean).join(text("comma")) || text("free");
}

/**
 * @param {Shot[]} shots
 * @param {Shot[]} next
 */
function lengthText(shots, next) {
  const fewer = 3 * (countAfresh(next) - countAfresh(shots));
  if (!fewer || blocksIn(next) !== blocksIn(shots)) return "";
  return text(fewer > 0 ? "shorter" : "longer", { frames: Math.abs(fewer) });
}

/** @param {Shot[]} shots */
function blocksIn(shots) {
  return shots.reduce((sum, { marks }) => sum + marks.length, 0);
}

/**
 * Where a shot begins, as its card says it, and as its menu does: with the last frame of another one, which is the last of its run, or of
 * footage.
 * @param {Shot[]} shots
 * @param {string} key
 */
export function originText(shots, key) {
  const head = shots.findIndex((_, at) => keyOf(shots, at) === key);
  const shot = tailShot(shots, head) + 1;
  const clip = key.slice(1);
  return head < 0
    ? { short: text("fromClip", { clip }), long: text("beginClip", { clip }) }
    : { short: text("fromShot", { shot }), long: text("beginShot", { shot }) };
}

/**
 * The numbers of the shots with these keys.
 * @param {ShotBoard} board
 * @param {string[]} keys
 */
export function shotsOf({ shots }, keys) {
  return shots.flatMap((_, i) => (keys.includes(keyOf(shots, i) ?? "") ? [i + 1] : []));
}
