// Which picture of a run stands for a shot, where shots begin afresh: keys say which of its blocks is which, wherever they stand.
import { letterOf, takesOf } from "./blocks.js";
import { isOld, lineAt, pictureOf } from "./strip_model.js";
import { keyOf, startsOf } from "./shots.js";

/**
 * What is asked of the next run. `places`: key, first block and number of blocks of each of its shots.
 * @typedef {object} AskedFilm
 * @property {RunPlace[]} places
 * @property {number} before blocks of a clip, which the lines count too
 * @property {string} directions
 * @property {string} takes
 * @property {Signature | undefined} signature
 */

/**
 * Where the runs of a board stand, as the server says of one that is made.
 * @param {Shot[]} shots
 * @param {number} before
 * @returns {RunPlace[]}
 */
export function placesOf(shots, before) {
  const starts = startsOf(shots).map((from) => Math.max(1, from - before));
  /** @type {RunPlace[]} */
  const places = [];
  for (const [i, { marks }] of shots.entries()) {
    const key = keyOf(shots, i);
    if (key) places.push([key, starts[i], 0]);
    const place = places[places.length - 1];
    place[2] += marks.filter(Boolean).length;
  }
  return places;
}

/**
 * The key of the run that a block is in, and which of its blocks it is, from 0; null if none has it.
 * @param {RunPlace[]} places
 * @param {number} number
 */
function blockIn(places, number) {
  const place = places.find(([, first, count]) => number >= first && number < first + count);
  return place ? { key: place[0], at: number - place[1] } : null;
}

/**
 * The event whose picture stands for a shot: the last that is the shot's by key and line, wherever it stood; else as `pictureOf` says, but
 * not one of another run's block that is in the film still. `at`: where its block stands now; `old`: whether it was made for something
 * else than is asked now.
 * @param {{ first: number, last: number }} shot
 * @param {Run} run
 * @param {AskedFilm} asked
 * @param {Forecast | null} forecast
 */
export function shotPicture({ first, last }, run, asked, forecast) {
  const { places, before, signature: now } = asked;
  const { shots: made, signature: then } = run.info;
  const key = blockIn(places, first)?.key;
  /** @param {BlockEvent} event */
  const placeOf = ({ number }) => {
    const block = made && blockIn(made, number);
    return { isOwn: !block || block.key === key, at: block ? numberOf(places, block) : number };
  };
  const free = run.events.filter((event) => placeOf(event).isOwn || !placeOf(event).at);
  const own = free.findLast((event) => {
    const { isOwn, at } = placeOf(event);
    const isLine =
      then && now && lineAt(then, event.number + before) === lineAt(now, first + before);
    return isOwn && isLine && at >= first && at <= last;
  });
  const event = own ?? pictureOf({ first, last, before }, { ...run, events: free }, now);
  if (!event) return { event, at: last, old: false };
  const at = placeOf(event).at || event.number;
  const isOther = at !== event.number && forecast !== null;
  const old = isOther ? !isAlike(run, event.number, at, asked) : isOld(forecast, event.number);
  return { event, at, old };
}

/**
 * The number of a run's block in the film; 0 if it has none.
 * @param {RunPlace[]} places
 * @param {{ key: string, at: number }} block
 */
function numberOf(places, { key, at }) {
  const place = places.find(([other, , count]) => other === key && at < count);
  return place ? place[1] + at : 0;
}

/**
 * Whether a run's block, which stands elsewhere now, and those of its shot before it were made by the words, makers and takes that are
 * asked now. Not known of one that begins with the end of another, and with strengths.
 * @param {Run} run
 * @param {number} number
 * @param {number} at where it stands now
 * @param {AskedFilm} asked
 */
function isAlike(run, number, at, { places, before, directions, takes, signature: now }) {
  const then = run.info.signature;
  const block = blockIn(places, at);
  if (!then || !now || !block || then.router !== now.router || then.tau !== now.tau) return false;
  const begins = `:${block.key} from `;
  const isPlain = [then, now].every(
    ({ shots, strengths }) => !shots.includes(begins) && !strengths.length,
  );
  const made = takesOf(run.takes);
  const wanted = takesOf(takes);
  const offsets = Array.from({ length: block.at + 1 }, (_, back) => back);
  return (
    isPlain &&
    offsets.every(
      (back) =>
        lineAt(then, number - back + before) === lineAt(now, at - back + before) &&
        letterOf(run.directions, number - back) === letterOf(directions, at - back) &&
        (made.get(number - back) ?? 1) === (wanted.get(at - back) ?? 1),
    )
  );
}
