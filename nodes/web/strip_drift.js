// A run's colour drift as a line below the film: how far each block's colours are from those its scene began with.
import { make } from "./common.js";
import { words } from "./strip_words.js";

const FULL = 0.3; // deviations that fill the height, unless a block drifts further; true clips stay within 0.1

export function driftLine() {
  const element = make("div", "sdvg-drift");
  element.innerHTML = '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><path vector-effect="non-scaling-stroke"/></svg>';
  element.append(make("span", ""));
  element.setAttribute("role", "img");
  return element;
}

/** `of`: how many blocks there will be. What a scene is measured from has no drift and begins a new line, at 0; a given one has none. */
export function drawDrift(element, events, of) {
  const known = events.filter(({ drift }) => Number.isFinite(drift));
  element.hidden = !known.length;
  if (!known.length) return;
  const most = known.reduce((one, other) => (other.drift > one.drift ? other : one));
  let [path, begun] = ["", false];
  for (const { number, drift } of events) {
    const at = `${(((number - 0.5) / of) * 100).toFixed(2)} ${(1 - drift / Math.max(FULL, most.drift)).toFixed(4)}h0`; // null counts as 0
    if (drift !== undefined) path += (begun && drift !== null ? "L" : "M") + at;
    begun = drift !== undefined;
  }
  element.querySelector("path").setAttribute("d", path);
  element.lastChild.textContent = words().drift(most.drift.toFixed(2), most.number);
  element.title = words().driftIs;
  element.setAttribute("aria-label", `${element.lastChild.textContent}. ${element.title}`);
}
