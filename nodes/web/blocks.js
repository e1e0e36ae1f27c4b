// Blocks, counted from 1: what is asked of them, how they came about, and how long they are.
// The sampler's two widgets: `directions`, one letter per block, and `takes`, such as "6:2, 8:3". The server's reading is
// sdvg_core/settings/request.py.
export const ROUTER = ".";
export const DIRECTIONS = ["t", "d", "a", "r"];

/**
 * @param {string} directions
 * @param {number} number
 */
export function letterOf(directions, number) {
  return directions[number - 1] ?? ROUTER;
}

/**
 * As many letters as the run has blocks; none if the router decides everywhere.
 * @param {string} directions
 * @param {number} blocks
 */
export function fitDirections(directions, blocks) {
  const letters = directions.slice(0, blocks).padEnd(blocks, ROUTER);
  return letters === ROUTER.repeat(blocks) ? "" : letters;
}

/**
 * The directions of a run of `blocks` blocks with one letter changed.
 * @param {string} directions
 * @param {number} blocks
 * @param {number} number
 * @param {string} letter
 */
export function withLetter(directions, blocks, number, letter) {
  const letters = [...directions.slice(0, blocks).padEnd(blocks, ROUTER)];
  letters[number - 1] = letter;
  return fitDirections(letters.join(""), blocks);
}

const TAKE = /^(\d{1,6}):(\d{1,7})$/;

/** @param {string} text */
function partsOf(text) {
  return text.split(/[,;\s]+/).filter(Boolean);
}

/**
 * Block -> its take, of those that have another than the first.
 * @param {string} text
 * @returns {Map<number, number>}
 */
export function takesOf(text) {
  const takes = new Map();
  for (const part of partsOf(text)) {
    const [, number, take] = part.match(TAKE) ?? [];
    if (Number(take) > 1) takes.set(Number(number), Number(take));
  }
  return takes;
}

/**
 * @param {string} text
 * @param {number} number
 */
export function takeOf(text, number) {
  return takesOf(text).get(number) ?? 1;
}

/**
 * Without takes of blocks that the run does not have. What is no take stays, for the server to object to.
 * @param {string} text
 * @param {number} blocks
 */
export function fitTakes(text, blocks) {
  return partsOf(text).every((part) => TAKE.test(part)) ? writeTakes(takesOf(text), blocks) : text;
}

/**
 * The takes of a run of `blocks` blocks with one changed.
 * @param {string} text
 * @param {number} blocks
 * @param {number} number
 * @param {number} take
 */
export function withTake(text, blocks, number, take) {
  return writeTakes(takesOf(text).set(number, take), blocks);
}

/**
 * Takes as text, of the first `blocks` blocks.
 * @param {Map<number, number>} takes
 * @param {number} blocks
 */
export function writeTakes(takes, blocks) {
  const written = [...takes].filter(([number, take]) => number <= blocks && take > 1);
  written.sort(([a], [b]) => a - b);
  return written.map((pair) => pair.join(":")).join(", ");
}

// Names and colours are those of sdvg_core/report/summary.py; ink is the text colour that reads best on each, and author the model
// whose latents the block has.
export const GIVEN = { name: "given", colour: "#555555", ink: "#fff", author: null }; // from an earlier run
/** @type {Record<string, Outcome>} */
export const OUTCOMES = {
  forced: { name: "forced", colour: "#0072B2", ink: "#fff", author: "target" },
  kept: { name: "kept", colour: "#009E73", ink: "#000", author: "drafter" },
  remade: { name: "remade", colour: "#D55E00", ink: "#000", author: "target" },
  drafted_unseen: { name: "drafted_unseen", colour: "#93D6C1", ink: "#000", author: "drafter" },
  target_unseen: { name: "target_unseen", colour: "#F3BC90", ink: "#000", author: "target" },
  bailed_out: { name: "bailed_out", colour: "#CC79A7", ink: "#000", author: "target" },
  refined: { name: "refined", colour: "#F0E442", ink: "#000", author: "target" },
};
// For one from a newer server that this file, still in the browser's cache, does not know.
const OTHER = { name: "other", colour: "#888888", ink: "#000", author: null };

/**
 * How a block came about.
 * @param {{ outcome: string }} event
 * @returns {Outcome}
 */
export function outcomeOf({ outcome }) {
  return outcome === GIVEN.name ? GIVEN : (OUTCOMES[outcome] ?? OTHER);
}

export const RATE = 16; // frames per second, of Wan 2.1
export const BLOCK_LENGTH = 3; // latent frames, of all published pairs; each is four frames of the video, or one where it begins

/**
 * Frames that the first blocks show; if they go on from a clip, those that they add to it. Each shot that begins with nothing before it
 * shows three fewer, as the beginning of a video does.
 * @param {number} blocks
 * @param {Partial<VideoStart>} [start]
 */
export function framesOf(
  blocks,
  { clip = false, image = false, afresh = [], blockLength = BLOCK_LENGTH } = {},
) {
  const fewer = 3 * afresh.filter((block) => block <= blocks).length;
  const all = 4 * blockLength * blocks - fewer;
  if (clip) return all;
  return all + (image ? 1 : -3);
}

/**
 * The second of the video at which a block begins.
 * @param {number} number
 * @param {VideoStart} start
 */
export function secondOf(number, start) {
  const clip = start.clipSeconds ?? 0;
  return number > 1 ? clip + framesOf(number - 1, start) / RATE : clip;
}
