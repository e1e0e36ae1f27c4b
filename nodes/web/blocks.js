// Blocks, counted from 1: what is asked of them, how they came about, and how long they are.
// The sampler's two widgets: `directions`, one letter per block, and `takes`, such as "6:2, 8:3". The server's reading is
// sdvg_core/engine/plan.py.
export const ROUTER = ".";

/** The model that a letter asks for; the router's choice is not known beforehand. */
export const WANTED = { t: "target", r: "target", d: "drafter", a: "drafter" };

export function letterOf(directions, number) {
  return directions[number - 1] ?? ROUTER;
}

/** As many letters as the run has blocks; none if the router decides everywhere. */
export function fitDirections(directions, blocks) {
  const letters = directions.slice(0, blocks).padEnd(blocks, ROUTER);
  return letters === ROUTER.repeat(blocks) ? "" : letters;
}

/** The directions of a run of `blocks` blocks with one letter changed. */
export function withLetter(directions, blocks, number, letter) {
  const letters = [...directions.slice(0, blocks).padEnd(blocks, ROUTER)];
  letters[number - 1] = letter;
  return fitDirections(letters.join(""), blocks);
}

const TAKE = /^(\d{1,6}):(\d{1,7})$/;

function partsOf(text) {
  return text.split(/[,;\s]+/).filter(Boolean);
}

/** Block -> its take, of those that have another than the first. */
export function takesOf(text) {
  const pairs = partsOf(text).map((part) => part.match(TAKE)).filter(Boolean);
  return new Map(pairs.map(([, number, take]) => [Number(number), Number(take)]).filter(([, take]) => take > 1));
}

export function takeOf(text, number) {
  return takesOf(text).get(number) ?? 1;
}

/** Without takes of blocks that the run does not have. What is no take stays, for the server to object to. */
export function fitTakes(text, blocks) {
  return partsOf(text).every((part) => TAKE.test(part)) ? writeTakes(takesOf(text), blocks) : text;
}

/** The takes of a run of `blocks` blocks with one changed. */
export function withTake(text, blocks, number, take) {
  return writeTakes(takesOf(text).set(number, take), blocks);
}

/** Takes as text, of the first `blocks` blocks. */
export function writeTakes(takes, blocks) {
  const written = [...takes].filter(([one, its]) => one <= blocks && its > 1).sort(([a], [b]) => a - b);
  return written.map((pair) => pair.join(":")).join(", ");
}

// Names and colours are those of sdvg_core/report/summary.py; ink is the text colour that reads best on each, and author the model
// whose latents the block has.
const GIVEN = { colour: "#555555", ink: "#fff", author: null, en: "locked", zh: "已锁定" }; // from an earlier run
export const FATES = {
  forced: { colour: "#0072B2", ink: "#fff", author: "target", en: "large model, by rule", zh: "大模型（按规则）" },
  kept: { colour: "#009E73", ink: "#000", author: "drafter", en: "small model, checked", zh: "小模型（已检查）" },
  remade: { colour: "#D55E00", ink: "#000", author: "target", en: "large model, remade", zh: "大模型（重做）" },
  drafted_unseen: { colour: "#93D6C1", ink: "#000", author: "drafter", en: "small model, not checked", zh: "小模型（未检查）" },
  target_unseen: { colour: "#F3BC90", ink: "#000", author: "target", en: "large model", zh: "大模型" },
  bailed_out: { colour: "#CC79A7", ink: "#000", author: "target", en: "large model, after too many remakes", zh: "大模型（重做过多）" },
};
// For a fate from a newer server that this file, still in the browser's cache, does not know.
const UNKNOWN = { colour: "#888888", ink: "#000", author: null, en: "other", zh: "其他" };

export function fateOf(event) {
  return event.fate === "given" ? GIVEN : (FATES[event.fate] ?? UNKNOWN);
}

// A block has three latent frames, as with all published pairs; one is four frames of the video, or one at the beginning of a clip.
export const RATE = 16; // frames per second, of Wan 2.1

/** Frames that the blocks show; if they go on from a clip, those that they add to it. */
export function framesOf(blocks, { clip = false, image = false } = {}) {
  if (clip) return 12 * blocks;
  return image ? 12 * blocks + 1 : 12 * blocks - 3;
}

/** The length as words: `Length: 9 blocks = 6.6 s`; with a clip, what is added to it. */
export function lengthIn(words, blocks, start) {
  return words.length(blocks, (framesOf(blocks, start) / RATE).toFixed(1), start.clip);
}
