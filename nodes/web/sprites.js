// The pictures of finished blocks: for each block one JPEG with its frames side by side, decoded once and shown by any strip.
import { api } from "../../scripts/api.js";

const MOST = 100; // blocks; at 256 x 148 and 12 frames about 1.8 MB each
const AT_ONCE = 2;

const bitmaps = new Map(); // run and number -> the decoded picture, oldest first
const waiting = [];
let fetching = 0;

function keyOf({ run, number }) {
  return `${run}/${number}`;
}

export function bitmapOf(event) {
  return bitmaps.get(keyOf(event));
}

/** Those of a run's blocks that can be played: the newest that have a picture. */
export function playable(events) {
  return events.slice(-MOST).filter((event) => event.sprite);
}

/** Fetch the picture of a block and then call `shown`. If the signal aborts before its turn, it is not fetched. */
export function fetchSprite(event, shown, signal) {
  waiting.push({ event, shown, signal });
  next();
}

function next() {
  if (fetching >= AT_ONCE || !waiting.length) return;
  const { event, shown, signal } = waiting.shift();
  if (signal.aborted) {
    next();
    return;
  }
  fetching += 1;
  load(event, signal)
    .then(shown, (error) => signal.aborted || console.warn(`SDVG: the frames of block ${event.number} cannot be shown`, error))
    .finally(() => {
      fetching -= 1;
      next();
    });
  next();
}

async function load(event, signal) {
  if (bitmaps.has(keyOf(event))) return;
  const answer = await api.fetchApi(`/sdvg/frames/${event.run}/${event.number}`, { signal, cache: "default" });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  bitmaps.set(keyOf(event), await createImageBitmap(await answer.blob()));
  for (const [key, bitmap] of bitmaps) {
    if (bitmaps.size <= MOST) break;
    bitmaps.delete(key);
    bitmap.close();
  }
}
