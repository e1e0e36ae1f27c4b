// The shots of a video: stretches of blocks, each with its prompt. They are another view of what the nodes hold already: the text
// with its lines, the number of blocks, who makes each block, and its take. What changes them is in shot_edits.js.
import { fitDirections, fitTakes, letterOf, takesOf, writeTakes } from "./blocks.js";
import { headOf, isKey, lineOf, namesBlock, parts, secondsIn } from "./prompt_lines.js";

export const FIRST_KEY = "#0"; // of the first shot if its line gives none

/**
 * The board of the values `{ text, blocks, directions, takes }`: its `shots`, with a mark `{ letter, take }` for each block, the
 * `clips` shown after them, and `later`, the lines that no block reaches. Lines count the `before` blocks of a clip that is continued
 * too; these have no mark. Null if the lines are out of order, if their keys do not fit together, or if the takes cannot be read: then
 * text alone edits them.
 * @param {BoardValues} values
 * @param {number} [before]
 * @returns {ShotBoard | null}
 */
export function readBoard({ text, blocks, directions, takes }, before = 0) {
  const [own, ...others] = parts(text);
  const isFirst = others.find(({ clip }) => !clip)?.from === 1; // the prompt is written "1: ..."
  const plain = own.lines.join("").trim() || !isFirst;
  const lines = plain ? [own, ...others] : others;
  const known = takesOf(takes);
  const last = blocks + before;
  if (!inOrder(lines, last) || fitTakes(takes, Infinity) !== writeTakes(known, Infinity))
    return null;
  /** @param {number} number */
  const mark = (number) => {
    if (number <= before) return null;
    const block = number - before;
    return { letter: letterOf(directions, block), take: known.get(block) ?? 1 };
  };
  const reached = lines.filter(({ clip, from }) => !clip && from <= last);
  const clips = lines.filter(({ clip, from }) => clip && from <= last + 1);
  const shots = reached.map((line, i) => {
    const { from, cut, fresh, strength } = line;
    const end = reached[i + 1]?.from ?? last + 1;
    const marks = Array.from({ length: end - from }, (_, block) => mark(from + block));
    const prompt = line.lines.join("\n").trim();
    return { clips: clipsAt(clips, from), cut, fresh, strength, prompt, marks };
  });
  const board = {
    shots: withCuts(withPlainFirst(shots)),
    clips: clipsAt(clips, last + 1),
    later: lines
      .filter((line) => !reached.includes(line) && !clips.includes(line))
      .map((line) => ({ ...line, from: line.from - last })),
  };
  return isSound(board) && lines.every(({ cut, fresh }) => !(cut && fresh)) ? board : null;
}

/**
 * Whether blocks ascend, from 1 on, and footage has no words and is shown before the block of a line, or after the last one.
 * @param {PromptPart[]} lines
 * @param {number} last
 */
function inOrder(lines, last) {
  const starts = lines.filter(({ clip }) => !clip).map(({ from }) => from);
  const clips = lines.filter(({ clip }) => clip);
  return (
    starts.every((from, i) => from > (starts[i - 1] ?? 0)) &&
    clips.every(({ from, lines: words }, i) => {
      const isPlaced = from > last || starts.includes(from);
      return isPlaced && from >= (clips[i - 1]?.from ?? 0) && !words.join("").trim();
    })
  );
}

/**
 * @param {PromptPart[]} lines
 * @param {number} block
 */
function clipsAt(lines, block) {
  return lines.flatMap(({ clip, from }) => (clip && from === block ? [clip] : []));
}

/**
 * The shots with the first one as it is written: its own key alone is.
 * @param {Shot[]} shots
 */
export function withPlainFirst(shots) {
  const isPlain = shots[0]?.fresh?.key === FIRST_KEY && !shots[0].fresh.from;
  return isPlain ? [{ ...shots[0], fresh: null }, ...shots.slice(1)] : shots;
}

/**
 * The shots with these cuts. A cut belongs to the place between two shots, so before the first one there is none, nor before one that
 * begins afresh.
 * @param {Shot[]} shots
 * @param {boolean[]} [cuts]
 */
export function withCuts(shots, cuts = shots.map(({ cut }) => cut)) {
  return shots.map((shot, i) => ({ ...shot, cut: i > 0 && !shot.fresh && cuts[i] }));
}

/**
 * The values that a board stands for.
 * @param {ShotBoard} board
 */
export function writeBoard({ shots, clips, later }) {
  const starts = startsOf(shots);
  const marks = shots.flatMap((shot) => shot.marks);
  const lines = shots.flatMap((shot, i) => [
    ...shot.clips.map((clip) => writeClip(clip, starts[i])),
    writeShot(shot, starts[i]),
  ]);
  const known = marks.filter((mark) => mark !== null); // of the blocks that the run makes
  const takes = new Map(known.map(({ take }, i) => [i + 1, take]));
  return {
    text: [
      ...lines,
      ...clips.map((clip) => writeClip(clip, marks.length + 1)),
      ...later.map((line) => lineOf({ ...line, from: line.from + marks.length })),
    ].join("\n"),
    blocks: known.length,
    directions: fitDirections(known.map(({ letter }) => letter).join(""), known.length),
    takes: writeTakes(takes, known.length),
  };
}

/**
 * @param {Footage} clip
 * @param {number} from
 */
function writeClip(clip, from) {
  return lineOf({ from, cut: false, fresh: null, strength: "", clip, lines: [] });
}

/**
 * @param {Shot} shot
 * @param {number} from
 */
function writeShot({ clips, cut, fresh, strength, prompt }, from) {
  const head = { cut, fresh, strength, clip: null };
  const isBare = from === 1 && !clips.length && !headOf(head);
  const plain = isBare && !prompt.split("\n").some(namesBlock);
  return plain ? prompt : lineOf({ from, ...head, lines: [prompt] });
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
 * The shot that a block is in, as the lines count.
 * @param {ShotBoard} board
 * @param {number} block
 */
export function shotAt({ shots }, block) {
  return startsOf(shots).findLastIndex((from) => from <= block);
}

/**
 * The shots with the prompt in force where a line gives a strength alone, so that it comes along.
 * @param {Shot[]} shots
 */
export function spoken(shots) {
  let prompt = "";
  return shots.map((shot) => ({ ...shot, prompt: (prompt = shot.prompt || prompt) }));
}

/**
 * The runs of a video by the text of its prompt, as the server reads it.
 * @param {string} text
 * @param {number} blocks
 * @param {number} before blocks of a clip, which the lines count too
 * @returns {RunPlace[]}
 */
export function placesIn(text, blocks, before) {
  const begins = parts(text).flatMap(({ from, fresh }) => (fresh ? { from, key: fresh.key } : []));
  const key = begins.find(({ from }) => from === 1)?.key ?? FIRST_KEY;
  const later = begins.map((begin) => ({ key: begin.key, first: begin.from - before }));
  const shots = [{ key, first: 1 }, ...later.filter(({ first }) => first > 1 && first <= blocks)];
  return shots.map((shot, i) => {
    const end = shots[i + 1]?.first ?? blocks + 1;
    return [shot.key, shot.first, end - shot.first];
  });
}

/**
 * The shots of a run, as it was asked for them.
 * @param {Run} run
 * @returns {RunPlace[]}
 */
export function placesOfRun({ info, of }) {
  return info.shots ?? [[FIRST_KEY, 1, of]];
}

// --- keys: of the shots that begin afresh, each a run of its own with the shots that go on with it, and of footage

/**
 * The key of a shot that begins afresh, as the first one does; null for one that goes on.
 * @param {Shot[]} shots
 * @param {number} i
 */
export function keyOf(shots, i) {
  return shots[i].fresh?.key ?? (i ? null : FIRST_KEY);
}

/**
 * The keys of the runs and clips that come before a shot: it may begin with the last frame of one.
 * @param {Shot[]} shots
 * @param {number} i
 */
export function keysBefore(shots, i) {
  const names = shots.slice(0, i + 1).flatMap(({ clips }) => clips.map(({ name }) => name));
  return [...shots.slice(0, i).flatMap((_, at) => keyOf(shots, at) ?? []), ...names];
}

/**
 * The shot that begins the run which a shot is in.
 * @param {Shot[]} shots
 * @param {number} i
 */
export function headShot(shots, i) {
  return shots.findLastIndex((_, at) => at <= i && keyOf(shots, at) !== null);
}

/**
 * The last shot of the run which a shot is in.
 * @param {Shot[]} shots
 * @param {number} i
 */
export function tailShot(shots, i) {
  const next = shots.findIndex((shot, at) => at > i && shot.fresh);
  return (next < 0 ? shots.length : next) - 1;
}

/**
 * Whether a shot that is added beside another one begins afresh: as that one does, unless the next one goes on from there. The first one
 * begins afresh, and is like others where any does.
 * @param {Shot[]} shots
 * @param {number} i
 * @param {number} at the place of the new one
 */
export function startsAfresh(shots, i, at) {
  if (at === 0) return true;
  const isAfresh = i > 0 ? shots[i].fresh !== null : shots.some(({ fresh }) => fresh);
  return isAfresh && (at === i || at === shots.length || shots[at].fresh !== null);
}

/**
 * How many later shots begin with nothing before them.
 * @param {Shot[]} shots
 */
export function countAfresh(shots) {
  return shots.filter(({ fresh }, i) => i > 0 && fresh && !fresh.from).length;
}

/**
 * The clips of a board, those of the lines that no block reaches too.
 * @param {ShotBoard} board
 */
export function allClips({ shots, clips, later }) {
  return [
    ...shots.flatMap((shot) => shot.clips),
    ...clips,
    ...later.flatMap(({ clip }) => clip ?? []),
  ];
}

/**
 * The keys of the runs of a board, those of the lines that no block reaches too.
 * @param {ShotBoard} board
 */
export function allRuns({ shots, later }) {
  const reached = shots.flatMap((_, i) => keyOf(shots, i) ?? []);
  return [...reached, ...later.flatMap(({ fresh }) => fresh?.key ?? [])];
}

/**
 * A key that a board does not have.
 * @param {ShotBoard} board
 * @param {() => number} [draw] a number from 0 to 1
 */
export function newKey(board, draw = Math.random) {
  const known = [...allRuns(board), ...allClips(board).map(({ name }) => name)];
  const least = 10 * 36 ** 2; // of three characters, the first a letter
  const most = 36 ** 3;
  const drawn = () => `#${(least + Math.floor(draw() * (most - least))).toString(36)}`;
  let key = drawn();
  while (known.includes(key)) key = drawn();
  return key;
}

/**
 * Whether the keys of a board fit together: each is one and names one thing, a shot begins with the end of something before it, and
 * one that begins afresh, as after footage, has a block of the run before it.
 * @param {ShotBoard} board
 */
export function isSound(board) {
  const { shots, clips, later } = board;
  const footage = allClips(board);
  const names = footage.map(({ name }) => name);
  const keys = [...allRuns(board), ...names];
  const reached = [...keysBefore(shots, shots.length), ...clips.map(({ name }) => name)];
  return (
    new Set(keys).size === keys.length &&
    keys.every(isKey) &&
    !names.includes(FIRST_KEY) &&
    footage.every(({ span }) => !span || secondsIn(span)) &&
    shots.every(({ fresh }, i) => !fresh?.from || keysBefore(shots, i).includes(fresh.from)) &&
    shots.every((shot, i) => i === 0 || canBegin(shots, i)) &&
    later.every(({ fresh }, i) => {
      const before = later.slice(0, i).map((line) => line.fresh?.key ?? line.clip?.name);
      return !fresh?.from || [...reached, ...before].includes(fresh.from);
    })
  );
}

/**
 * Whether a later shot goes on, without footage before it, or begins afresh behind a block that the run makes.
 * @param {Shot[]} shots
 * @param {number} i
 */
function canBegin(shots, i) {
  const { fresh, clips } = shots[i];
  if (!fresh) return !clips.length;
  return shots.slice(0, i).some(({ marks }) => marks.some(Boolean));
}
