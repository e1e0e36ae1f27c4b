// What a strip says of blocks and runs.
import { DIRECTIONS, GIVEN, OUTCOMES, outcomeOf } from "./blocks.js";
import { lockedIn } from "./locks.js";
import { hasFailed, secondsOf } from "./runs.js";
import { freeBlocks, isCertain, isUntilWrong, madeNext } from "./strip_model.js";
import { blocksText, outcomeText, stretchesText, text } from "./words.js";

/**
 * @typedef {object} RunState
 * @property {boolean} hasRun whether a run is shown
 * @property {boolean} isForgotten whether the server no longer has it
 * @property {boolean} bringsBack whether the next run makes nothing, and shows another one
 */

/** @param {number} number */
function decimal(number) {
  return number.toFixed(number < 100 ? 1 : 0);
}

/** @param {unknown} value @returns {value is number} */
function isNumber(value) {
  return Number.isFinite(value);
}

/**
 * What was judged of a block.
 * @param {BlockEvent} event
 */
export function verdictOf({ score, threshold, worst_frame: worst, unscored }) {
  if (!isNumber(score)) return text("unscored");
  const needs = isNumber(threshold) ? threshold.toFixed(2) : "";
  const values = { score: score.toFixed(2), needs, frame: (worst ?? 0) + 1 };
  const weakest = needs ? text("weakestNeeds", values) : text("weakest", values);
  const known = Number.isInteger(worst) ? weakest : text("score", values);
  return unscored ? text("partly", { known, count: unscored }) : known;
}

/**
 * How far the colours step where a shot begins.
 * @param {Join} join
 */
function joinText(join) {
  const { brightness, contrast, usual_brightness, usual_contrast, from_first } = join;
  return text("join", {
    brightness: decimal(brightness),
    contrast: decimal(contrast),
    usualBrightness: decimal(usual_brightness),
    usualContrast: decimal(usual_contrast),
    fromFirst: decimal(from_first),
  });
}

/**
 * What is said of a block that is looked at.
 * @param {BlockEvent} event
 * @param {Join} [join]
 */
export function detailOf(event, join) {
  const block = text("block", { number: event.number, of: event.of });
  return [block, verdictOf(event), ...(join ? [joinText(join)] : [])].join(" · ");
}

/**
 * What a square says.
 * @param {Square} square
 */
export function sentenceOf({ number, of, event, join, letter, take, again, uncertain, old, kept }) {
  const parts = [text("block", { number, of })];
  const isMade = event && event.outcome !== GIVEN.name;
  if (isMade) parts.push(outcomeText(event));
  if (event && !isMade && !kept) parts.push(text("wasLocked"));
  if (event && isNumber(event.score)) parts.push(verdictOf(event));
  if (isMade && event.reused) parts.push(text("earlier"));
  if (isMade && !event.reused) parts.push(text("seconds", { seconds: decimal(event.seconds) }));
  if (event && join) parts.push(joinText(join));
  if (kept) parts.push(text("isLocked"));
  if (DIRECTIONS.includes(letter)) parts.push(text(`directed.${letter}`));
  if (take > 1) parts.push(text("take", { take }));
  if (again) parts.push(event ? text("isAgain") : text("isNew"));
  if (uncertain) parts.push(text("mayChange"));
  if (old && event && !again && !uncertain) parts.push(text("isOld"));
  return parts.join(" · ");
}

/**
 * Why the next run will be refused, as far as that is known before it; empty if it will not.
 * @param {Inputs} inputs
 * @param {string} refusal the server's
 */
export function refusalText(inputs, refusal) {
  if (refusal) return refusal;
  if (isUntilWrong(inputs)) return text("untilWrong", { until: inputs.until });
  return lockedIn(inputs).length && inputs.start.restyle ? text("restyled") : "";
}

/**
 * What there is to say of the next run: why it will be refused, else what it makes; empty if nobody knows.
 * @param {Inputs} inputs
 * @param {Forecast | null} forecast
 * @param {RunState} state of the run that is shown
 * @param {string} refusal
 */
export function nextText(inputs, forecast, { hasRun, isForgotten, bringsBack }, refusal) {
  if (refusal) return refusal;
  const free = freeBlocks(inputs);
  if (!hasRun && !free.length)
    return text("lockedUnseen", { blocks: blocksText(1, inputs.blocks) });
  if (isForgotten && free.length) return text("forgottenRun", { blocks: stretchesText(free) });
  return bringsBack ? text("bringsBack") : forecastText(forecast);
}

/** @param {Forecast | null} forecast */
function forecastText(forecast) {
  const made = madeText(forecast);
  if (!forecast || !made) return "";
  const parts = [made];
  if (forecast.seconds) parts.push(aboutText(forecast.seconds));
  return text("next", { parts: parts.join(text("comma")) });
}

/**
 * About how long something takes; in seconds below two minutes, in minutes below two hours.
 * @param {number} seconds
 */
export function aboutText(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 120) return text("about", { seconds: decimal(seconds) });
  if (minutes < 120) return text("aboutMinutes", { minutes });
  return text("aboutHours", { hours: Math.floor(minutes / 60), minutes: minutes % 60 });
}

/**
 * The same without the time.
 * @param {Forecast | null} forecast
 */
export function madeText(forecast) {
  if (!forecast) return "";
  const stretches = madeNext(forecast);
  if (!stretches.length) return text("nothing");
  const [{ from, to }] = stretches;
  const isAll = from === 1 && to === forecast.blocks.length;
  const blocks = isAll ? text("everything") : stretchesText(stretches);
  return isCertain(forecast) ? text("remakes", { blocks }) : text("mayRemake", { blocks });
}

/**
 * How many blocks had each outcome, with its colour.
 * @param {BlockEvent[]} events
 */
export function tally(events) {
  const known = Object.values(OUTCOMES);
  const others = events.map(outcomeOf).filter((outcome) => !known.includes(outcome));
  return [...known, ...new Set(others)].flatMap((outcome) => {
    const count = events.filter((event) => outcomeOf(event) === outcome).length;
    const name = text(`outcome.${outcome.name}`);
    if (!count) return [];
    return [{ text: text("tally", { count, outcome: name }), colour: outcome.colour }];
  });
}

/**
 * How many blocks are from an earlier run, the seconds, and how the run ended.
 * @param {Run} run
 * @param {boolean} [isRecording] whether it is the film of a live session, which made its blocks
 */
export function summaryOf(run, isRecording = false) {
  const { events, of, info, done } = run;
  const own = events.filter(({ outcome }) => outcome !== GIVEN.name);
  const earlier = own.filter(({ reused }) => reused).length;
  const place = { number: events.length, of };
  return [
    earlier ? earlierText(earlier, isRecording) : "",
    own.length && !(isRecording && earlier === own.length)
      ? text("seconds", { seconds: decimal(secondsOf(run)) })
      : "",
    done?.speed_up ? speedText(done.speed_up, events) : "",
    done?.stopped ? text("stopped", place) : "",
    hasFailed(run) ? text("ended", place) : "",
    coloursText(done?.joins ?? {}),
    info.note ?? "", // of models that are swapped
  ].filter(Boolean);
}

/**
 * @param {number} count of blocks that this run did not make
 * @param {boolean} isRecording
 */
function earlierText(count, isRecording) {
  return isRecording ? text("live.ofThese", { count }) : text("ofThese", { count });
}

/**
 * How far the colours of each shot are from the first one's; empty for one shot.
 * @param {Record<string, Join>} joins
 */
function coloursText(joins) {
  const shots = Object.entries(joins).map(([number, { from_first }]) =>
    text("shotColours", { number, levels: decimal(from_first) }),
  );
  return shots.length ? text("colours", { shots: shots.join(text("comma")) }) : "";
}

/**
 * How a run compares with the large model alone.
 * @param {number} times
 * @param {BlockEvent[]} events
 */
function speedText(times, events) {
  if (decimal(times) === "1.0") return text("asFast");
  if (times > 1) return text("faster", { times: decimal(times) });
  const remade = events.filter(({ outcome }) => outcome === "remade").length;
  const drafts = remade + events.filter(({ outcome }) => outcome === "kept").length;
  if (!remade) return text("slow");
  return remade === drafts ? text("slowerAll") : text("slower", { remade, drafts });
}
