// Reads and writes the lines of a prompt that say what begins at a block, such as "5: a storm", "7 strength 0.6: a lake", "9 fresh #k3f: a
// bridge" or, for footage before a block, "12 clip #a 1.5-4.0:". Any other line belongs to the prompt before it. The server's reading is
// sdvg_core/text/prompts.py.
import { RATE } from "./blocks.js";

const CLIP = String.raw`[ \t]+clip[ \t]+(?<name>#[^\s:]*)(?:[ \t]+(?<span>[0-9][^\s:]*))?`;
const FRESH = String.raw`[ \t]+fresh[ \t]+(?<key>#[^\s:]*)(?:[ \t]+from[ \t]+(?<origin>#[^\s:]*))?`;
const SHOT = String.raw`(?<cut>[ \t]+cut)?(?:${FRESH})?(?<strength>[ \t]+strength[ \t]+\S+?)?`;
// With a digit right after the colon it is a ratio or a time of day.
const LINE = new RegExp(
  String.raw`^[ \t]*(?<number>[0-9]{1,6})(?:${CLIP}|${SHOT})[ \t]*:(?![0-9])[ \t]*(?<prompt>.*)$`,
  "s",
);
const KEY = /^#[a-z0-9]{1,12}$/;
const SPAN = /^([0-9]{1,4}(?:\.[0-9]{1,3})?)-([0-9]{1,4}(?:\.[0-9]{1,3})?)$/;

/**
 * The parts of a line about a block; null for any other line.
 * @param {string} line
 * @returns {PromptPart | null}
 */
function readLine(line) {
  const groups = line.match(LINE)?.groups;
  if (!groups) return null;
  const { number, cut, key, origin = "", strength = "", name, span = "", prompt } = groups;
  return {
    from: Number(number),
    cut: cut !== undefined,
    fresh: key === undefined ? null : { key, from: origin },
    strength,
    clip: name === undefined ? null : { name, span },
    lines: [prompt],
  };
}

/**
 * Whether a line is about a block.
 * @param {string} line
 */
export function namesBlock(line) {
  return readLine(line) !== null;
}

/**
 * Whether a text can be the key of a shot, or the name of a clip.
 * @param {string} text
 */
export function isKey(text) {
  return KEY.test(text);
}

/**
 * The seconds at which a part of a clip begins and ends, as they are written; null for another text.
 * @param {string} span
 */
export function secondsIn(span) {
  const [, first, last] = span.match(SPAN) ?? [];
  return first === undefined ? null : { first, last };
}

/**
 * The part of a clip between two seconds, as it is written: all of it without them, null where it has no frame or no end.
 * @param {string} first
 * @param {string} last
 */
export function spanBetween(first, last) {
  const [from, to] = [first || "0", last].map((second) => Math.round(Number(second) * 1000) / 1000);
  if (!first.trim() && !last.trim()) return "";
  const span = `${from}-${to}`;
  return secondsIn(span) && Math.round(to * RATE) > Math.round(from * RATE) ? span : null;
}

/**
 * The parts of a prompt: first the prompt itself, then one for each line about a block.
 * @param {string} text
 * @returns {PromptPart[]}
 */
export function parts(text) {
  /** @type {PromptPart[]} */
  const all = [{ from: 1, cut: false, fresh: null, strength: "", clip: null, lines: [] }];
  for (const line of text.split(/\r\n|\r|\n/)) {
    const part = readLine(line);
    if (part) all.push(part);
    else all[all.length - 1].lines.push(line);
  }
  return all;
}

/**
 * A part as it is written.
 * @param {PromptPart} part
 */
export function lineOf({ from, lines, ...head }) {
  return `${from}${headOf(head)}: ${lines.join("\n").trimEnd()}`.trimEnd();
}

/**
 * What stands between number and colon.
 * @param {Omit<PromptPart, "from" | "lines">} part
 */
export function headOf({ cut, fresh, strength, clip }) {
  if (clip) return [" clip", clip.name, clip.span].filter(Boolean).join(" ");
  const origin = fresh?.from ? ` from ${fresh.from}` : "";
  return `${cut ? " cut" : ""}${fresh ? ` fresh ${fresh.key}${origin}` : ""}${strength}`;
}

/**
 * The blocks of a run, behind its first one, at which a shot begins with nothing before it.
 * @param {string} text
 * @param {number} before blocks of a clip, which the lines count too
 */
export function blocksAfresh(text, before) {
  const begins = parts(text).filter(({ fresh }) => fresh && !fresh.from);
  return begins.map(({ from }) => from - before).filter((block) => block > 1);
}
