// The pictures of finished blocks: each has one JPEG with its frames side by side, decoded once and shown by any strip.
import { askServer } from "./frontend.js";

export const MOST = 100; // blocks, or as many as are on the screen; at 256 x 148 and 12 frames about 1.8 MB each
const AT_ONCE = 2;

/** @type {Map<string, ImageBitmap>} */
const bitmaps = new Map(); // run, number and edition -> the decoded picture, oldest first
/** @type {Set<{ shown: BlockEvent[] }>} */
export const players = new Set(); // whose pictures stay
/** @type {{ event: BlockEvent, shown: () => void, signal: AbortSignal }[]} */
const waiting = [];
let fetching = 0;

/** @param {BlockEvent} event */
function keyOf({ run, number, edition }) {
  return edition ? `${run}/${number}?e=${edition}` : `${run}/${number}`;
}

/** @param {BlockEvent} event */
export function bitmapOf(event) {
  return bitmaps.get(keyOf(event));
}

/**
 * Those of a run's blocks that can be played: the newest that have a picture.
 * @param {BlockEvent[]} events
 */
export function playable(events) {
  return events.slice(-MOST).filter((event) => event.sprite);
}

/**
 * How many frames events have.
 * @param {BlockEvent[]} events
 */
export function framesIn(events) {
  return events.reduce((sum, event) => sum + (event.sprite?.frames ?? 0), 0);
}

/**
 * Fetch the picture of a block and then call `shown`. If the signal aborts before its turn, it is not fetched.
 * @param {BlockEvent} event
 * @param {() => void} shown
 * @param {AbortSignal} signal
 */
export function fetchSprite(event, shown, signal) {
  waiting.push({ event, shown, signal });
  next();
}

async function next() {
  if (fetching >= AT_ONCE) return;
  const wanted = waiting.shift();
  if (!wanted) return;
  const { event, shown, signal } = wanted;
  if (!signal.aborted) {
    fetching += 1;
    try {
      const isLoaded = load(event, signal);
      next();
      await isLoaded;
      shown();
    } catch (error) {
      if (!signal.aborted) console.warn("SDVG", error);
    } finally {
      fetching -= 1;
    }
  }
  next();
}

/**
 * @param {BlockEvent} event
 * @param {AbortSignal} signal
 */
async function load(event, signal) {
  if (bitmaps.has(keyOf(event))) return;
  const answer = await askServer(`/sdvg/frames/${keyOf(event)}`, { signal, cache: "default" });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  bitmaps.set(keyOf(event), await createImageBitmap(await answer.blob()));
  const kept = new Set([...players].flatMap(({ shown }) => shown.map(keyOf)));
  for (const [key, bitmap] of bitmaps) {
    if (bitmaps.size <= MOST) break;
    if (kept.has(key)) continue;
    bitmaps.delete(key);
    bitmap.close();
  }
}

/**
 * Draw a frame of a block on a canvas.
 * @type {Paint}
 */
export function paintFrame(canvas, event, frame) {
  const bitmap = bitmapOf(event);
  if (!event.sprite || !bitmap) return;
  const { width, height } = event.sprite;
  const painted = `${keyOf(event)}:${frame + 1}`;
  canvas.classList.remove("blank");
  if (canvas.dataset.painted === painted) return;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  pen?.drawImage(bitmap, frame * width, 0, width, height, 0, 0, width, height);
  Object.assign(canvas.dataset, { painted, shown: `${event.number}:${frame + 1}` });
}
