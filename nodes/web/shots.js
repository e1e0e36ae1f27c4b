// The shots of a video: stretches of blocks, each with its prompt. They are another view of what the nodes hold already: the text
// with its lines, the number of blocks, who makes each block, and its take. Every edit returns another board and changes none.
import { ROUTER, fitDirections, fitTakes, letterOf, takesOf, writeTakes } from "./blocks.js";
import { headParts, lineOf, namesBlock, parts } from "./prompt_lines.js";

export const NEW_BLOCKS = 3; // of a shot that is added

/**
 * The board of the values `{ text, blocks, directions, takes }`: its `shots` `{ cut, strength, prompt, marks }`, with a mark
 * `{ letter, take }` for each block, and `later`, the lines that no block reaches. Lines count the `before` blocks of a clip that
 * is continued too; these have no mark. Null if the lines are out of order or the takes cannot be read: then text alone edits them.
 * @param {BoardValues} values
 * @param {number} [before]
 * @returns {ShotBoard | null}
 */
export function readBoard({ text, blocks, directions, takes }, before = 0) {
  const [own, ...others] = parts(text);
  const plain = own.lines.join("").trim() || others[0]?.from !== 1; // not a prompt that is written "1: ..."
  const lines = plain ? [own, ...others] : others;
  const sorted = lines.every(({ from }, i) => !i || from > lines[i - 1].from);
  const known = takesOf(takes);
  if (!sorted || fitTakes(takes, Infinity) !== writeTakes(known, Infinity)) return null;
  const last = blocks + before;
  /** @param {number} number */
  const mark = (number) => {
    if (number <= before) return null;
    const block = number - before;
    return { letter: letterOf(directions, block), take: known.get(block) ?? 1 };
  };
  /** @type {Shot[]} */
  const shots = [];
  lines
    .filter(({ from }) => from <= last)
    .forEach((line, i) => {
      const end = Math.min(lines[i + 1]?.from ?? Infinity, last + 1);
      const marks = Array.from({ length: end - line.from }, (_, block) => mark(line.from + block));
      shots.push({ ...headParts(line.head), prompt: line.lines.join("\n").trim(), marks });
    });
  return {
    shots: withCuts(shots),
    later: lines
      .filter(({ from }) => from > last)
      .map((line) => ({ ...line, from: line.from - last })),
  };
}

/**
 * The values that a board stands for.
 * @param {ShotBoard} board
 */
export function writeBoard({ shots, later }) {
  const starts = startsOf(shots);
  const marks = shots.flatMap((shot) => shot.marks);
  const lines = shots.map((shot, i) => writeShot(shot, starts[i]));
  const known = marks.filter((mark) => mark !== null); // of the blocks that the run makes
  const takes = new Map(known.map(({ take }, i) => [i + 1, take]));
  return {
    text: [
      ...lines,
      ...later.map((line) => lineOf({ ...line, from: line.from + marks.length })),
    ].join("\n"),
    blocks: known.length,
    directions: fitDirections(known.map(({ letter }) => letter).join(""), known.length),
    takes: writeTakes(takes, known.length),
  };
}

/**
 * @param {Shot} shot
 * @param {number} from
 */
function writeShot({ cut, strength, prompt }, from) {
  const head = (cut ? " cut" : "") + strength;
  const plain = from === 1 && !head && !prompt.split("\n").some(namesBlock);
  return plain ? prompt : lineOf({ from, head, lines: [prompt] });
}

/**
 * The block at which each shot begins, as the lines count.
 * @param {Shot[]} shots
 */
export function startsOf(shots) {
  let from = 1;
  return shots.map(({ marks }) => (from += marks.length) - marks.length);
}

/**
 * The shots with these cuts. A cut belongs to the place between two shots, so before the first one there is none.
 * @param {Shot[]} shots
 * @param {boolean[]} [cuts]
 */
function withCuts(shots, cuts = shots.map(({ cut }) => cut)) {
  return shots.map((shot, i) => ({ ...shot, cut: i > 0 && cuts[i] }));
}

/**
 * @param {ShotBoard} board
 * @param {(shots: Shot[]) => unknown} edit
 * @returns {ShotBoard}
 */
function withShots(board, edit) {
  const shots = [...board.shots];
  edit(shots);
  return { ...board, shots };
}

/**
 * Another prompt for a shot. Without any, it is one with the shot before, unless it has a strength; the first one keeps its own.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {string} text
 */
export function sayShot(board, i, text) {
  if (!text.trim() && !i) return board;
  // A line that would name a block goes on the line before it.
  const lines = text.trim().split(/\r\n|\r|\n/);
  const prompt = lines.reduce((all, line) => all + (namesBlock(line) ? " " : "\n") + line);
  if (!prompt && !board.shots[i].strength) {
    return withShots(board, (shots) => {
      const [{ marks }] = shots.splice(i, 1);
      shots[i - 1] = { ...shots[i - 1], marks: [...shots[i - 1].marks, ...marks] };
    });
  }
  const cut = board.shots[i].cut && prompt !== ""; // a cut needs a prompt
  return withShots(board, (shots) => (shots[i] = { ...shots[i], cut, prompt }));
}

/**
 * Have a shot begin with a cut, or go on from what is before it; before the first one there is nothing.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {boolean} cut
 */
export function cutShot(board, i, cut) {
  if (!i) return board;
  const { prompt } = spoken(board.shots)[i];
  return withShots(board, (shots) => (shots[i] = { ...shots[i], cut, prompt }));
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
  return withShots(
    board,
    (shots) => (shots[i] = { ...shots[i], marks: [...marks.slice(0, count), ...added] }),
  );
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
  return withShots(board, (shots) => (shots[i] = { ...shots[i], marks }));
}

/**
 * Add a shot behind another one, which it goes on with until it has a prompt of its own.
 * @param {ShotBoard} board
 * @param {number} i
 */
export function addShot(board, i) {
  const prompt = spoken(board.shots)[i].prompt;
  const shot = {
    cut: false,
    strength: "",
    prompt,
    marks: Array.from({ length: NEW_BLOCKS }, newMark),
  };
  return withShots(board, (shots) => shots.splice(i + 1, 0, shot));
}

/**
 * Have a shot begin at a block, as the lines count; it goes on with the one before until it has a prompt of its own.
 * @param {ShotBoard} board
 * @param {number} from
 */
export function splitShot(board, from) {
  const i = shotAt(board, from);
  const { marks, ...shot } = board.shots[i];
  const at = from - startsOf(board.shots)[i];
  const rest = {
    cut: false,
    strength: "",
    prompt: spoken(board.shots)[i].prompt,
    marks: marks.slice(at),
  };
  return at
    ? withShots(board, (shots) => shots.splice(i, 1, { ...shot, marks: marks.slice(0, at) }, rest))
    : board;
}

/**
 * The shot that a block is in, as the lines count.
 * @param {ShotBoard} board
 * @param {number} block
 */
export function shotAt({ shots }, block) {
  return startsOf(shots).findLastIndex((from) => from <= block);
}

/**
 * Have a shot stand in another place. Its blocks keep their makers and takes; noise and cuts belong to the place.
 * @param {ShotBoard} board
 * @param {number} i
 * @param {number} to
 */
export function moveShot(board, i, to) {
  const shots = spoken(board.shots);
  shots.splice(to, 0, ...shots.splice(i, 1));
  return {
    ...board,
    shots: withCuts(
      shots,
      board.shots.map(({ cut }) => cut),
    ),
  };
}

/**
 * Take a shot away, with its blocks. The shots beside it are of two scenes if there was a cut on either side of it.
 * @param {ShotBoard} board
 * @param {number} i
 */
export function removeShot(board, i) {
  const shots = spoken(board.shots);
  const left = shots
    .map((shot, at) => (at === i + 1 ? { ...shot, cut: shot.cut || shots[i].cut } : shot))
    .filter((_, at) => at !== i);
  return { ...board, shots: withCuts(left) };
}

/**
 * @returns {Mark}
 */
function newMark() {
  return { letter: ROUTER, take: 1 };
}

/**
 * The shots with the prompt in force where a line gives a strength alone, so that it comes along.
 * @param {Shot[]} shots
 */
function spoken(shots) {
  let prompt = "";
  return shots.map((shot) => ({ ...shot, prompt: (prompt = shot.prompt || prompt) }));
}

/** @type {WeakMap<ShotBoard, string[]>} */
const blocksKnown = new WeakMap(); // board -> what its blocks are made by: a board never changes

/**
 * What the blocks of a board are made by, one text each.
 * @param {ShotBoard} board
 */
function blocksOf(board) {
  const blocks = blocksKnown.get(board) ?? newBlocks(board.shots);
  blocksKnown.set(board, blocks);
  return blocks;
}

/** @param {Shot[]} shots */
function newBlocks(shots) {
  let strength = "";
  return spoken(shots).flatMap((shot) => {
    strength = shot.strength || strength;
    const words = JSON.stringify([shot.prompt, strength]);
    return shot.marks.map((mark, block) => {
      const maker = mark ? `${mark.letter}${mark.take}` : "";
      return `${shot.cut && !block ? "cut " : ""}${maker} ${words}`;
    });
  });
}

/**
 * The first block that another board makes anew, as the lines count, and how many there are from it on.
 * @param {ShotBoard} board
 * @param {ShotBoard} next
 */
export function changed(board, next) {
  const before = blocksOf(board);
  const after = blocksOf(next);
  const same = after.findIndex((block, i) => block !== before[i]);
  const from = same < 0 ? after.length + 1 : same + 1;
  return { from, count: after.length - from + 1 };
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
  const first = next.shots.length ? changed(board, next).from : 0;
  const whole =
    next.shots.every(({ marks }) => marks.length) &&
    (next.shots.length < 2 || spoken(next.shots)[0].prompt !== "");
  const isMade = marks.some(Boolean); // one block at least is the run's, not the clip's
  return whole && isMade && marks.length >= fixed && marks.length <= most && first > fixed;
}
