// What may be typed in a live session, how it is written into the graph, and how soon it acts: plain values.
import { BLOCK_LENGTH, RATE } from "./blocks.js";
import { namesBlock } from "./prompt_lines.js";

// ComfyUI's page takes comments out of a prompt as it queues it, and reads a backslash as the sign before a brace.
const STRIPPED = ["//", "/*", "\\"];
const NEWEST = 8; // blocks that tell how fast they are made

/**
 * Why a text cannot be the prompt of a live session, as a key of `live.refused` and what it names; null if it can.
 * @param {string} prompt
 * @returns {{ key: string, values: Record<string, string> } | null}
 */
export function promptProblem(prompt) {
  const mark = STRIPPED.find((sign) => prompt.includes(sign));
  if (mark) return { key: "stripped", values: { mark } };
  if (/[\n\r]/.test(prompt)) return { key: "oneLine", values: {} };
  return namesBlock(prompt) ? { key: "namesBlock", values: {} } : null;
}

/**
 * A prompt as it stands in a box of which ComfyUI draws the choices `{a|b}`: these signs are themselves there.
 * @param {string} prompt
 */
export function escapeChoices(prompt) {
  return prompt.replaceAll(/[{}|]/g, String.raw`\$&`);
}

/**
 * A prompt with its first words as they are written by hand: without the number of the first block.
 * @param {string} prompt
 */
export function withBareFirst(prompt) {
  const [first] = prompt.split("\n");
  const words = first.replace(/^1: /, "");
  return namesBlock(words) ? prompt : words + prompt.slice(first.length);
}

/**
 * Seconds that a block plays, and that it takes to be made, of the newest blocks of a run, if it made any; null before the first one.
 * @param {Run} run
 */
export function paceOf({ events, info }) {
  const own = events.filter(({ reused }) => !reused);
  const newest = (own.length ? own : events).slice(-NEWEST);
  if (!newest.length) return null;
  /** @param {(event: BlockEvent) => number} measure */
  const mean = (measure) => newest.reduce((sum, event) => sum + measure(event), 0) / newest.length;
  const frames = mean(({ sprite }) => sprite?.frames ?? 4 * BLOCK_LENGTH);
  return { plays: frames / (info.fps || RATE), takes: mean(({ seconds }) => seconds) };
}

/**
 * Seconds until words that are sent now show; null before the first block.
 * @param {Run} run
 * @param {number} seen how many blocks were shown
 */
export function secondsAhead(run, seen) {
  const pace = paceOf(run);
  if (!pace) return null;
  const made = run.events.length;
  const upcoming = Math.max(run.info.state?.upcoming ?? 1, made + 1);
  const played = (upcoming - 1 - seen) * pace.plays;
  const encoding = run.info.state?.encoding ?? 0; // of the words before, and so of the next ones
  return Math.max(0, played, (upcoming - made) * pace.takes + encoding);
}

/**
 * The speed at which a film grows, in parts of that at which it plays; null where it keeps up, or nothing is made yet.
 * @param {Run} run
 */
export function growth(run) {
  const pace = paceOf(run);
  if (!pace || pace.takes <= pace.plays) return null;
  return pace.plays / pace.takes;
}
