// The drift of the colours, as a line below the film.
import { make, nameElement } from "./dom.js";
import { text } from "./words.js";

const FULL = 0.3; // deviations that fill the height, unless a block drifts further; true clips stay within 0.1
const SVG = "http://www.w3.org/2000/svg";

export class DriftLine {
  constructor() {
    this.element = make("div", "sdvg-drift", "", { role: "img" });
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("viewBox", "0 0 100 1");
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("aria-hidden", "true");
    this.path = drawing.appendChild(document.createElementNS(SVG, "path"));
    this.path.setAttribute("vector-effect", "non-scaling-stroke");
    this.text = make("span");
    this.element.append(drawing, this.text);
  }

  /**
   * Show it for `of` blocks. What a scene is measured from has no drift and begins a new line, at 0; a given one has none.
   * @param {BlockEvent[]} events
   * @param {number} of
   */
  draw(events, of) {
    const most = events.reduce(mostOf, null);
    this.element.hidden = !most;
    if (!most) return;
    this.path.setAttribute("d", pathOf(events, of, Math.max(FULL, most.drift ?? 0)));
    const values = { most: (most.drift ?? 0).toFixed(2), number: most.number };
    this.text.textContent = text("drift", values);
    nameElement(this.element, text("driftIs"));
    this.element.setAttribute("aria-label", `${this.text.textContent}. ${this.element.title}`);
  }
}

/**
 * @param {BlockEvent | null} most
 * @param {BlockEvent} event
 */
function mostOf(most, event) {
  if (!Number.isFinite(event.drift)) return most;
  return !most || (event.drift ?? 0) > (most.drift ?? 0) ? event : most;
}

/**
 * @param {BlockEvent[]} events
 * @param {number} of
 * @param {number} high
 */
function pathOf(events, of, high) {
  let path = "";
  let isBegun = false;
  for (const { number, drift } of events) {
    const x = (((number - 0.5) / of) * 100).toFixed(2);
    const y = (1 - (drift ?? 0) / high).toFixed(4);
    const letter = isBegun && drift !== null ? "L" : "M";
    if (drift !== undefined) path += `${letter}${x} ${y}h0`;
    isBegun = drift !== undefined;
  }
  return path;
}
