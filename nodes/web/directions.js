// Reads and writes the sampler's two widgets: `directions`, one letter per block, and `takes`, such as "6:2, 8:3".
// The server's reading is sdvg_core/engine/directions.py. Blocks are counted from 1.
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
  return partsOf(text).every((part) => TAKE.test(part)) ? write(takesOf(text), blocks) : text;
}

/** The takes of a run of `blocks` blocks with one changed. */
export function withTake(text, blocks, number, take) {
  return write(takesOf(text).set(number, take), blocks);
}

function write(takes, blocks) {
  const written = [...takes].filter(([one, its]) => one <= blocks && its > 1).sort(([a], [b]) => a - b);
  return written.map((pair) => pair.join(":")).join(", ");
}
