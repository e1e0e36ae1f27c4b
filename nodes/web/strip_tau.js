// The scores of the blocks and tau, the line that they are compared with. It can be dragged; until it is let go nothing is written.
import { make } from "./dom.js";
import { text } from "./words.js";

const STEP = 0.05; // of a key
const ROUND = 100; // a dragged tau has two decimals
const SPAN = { low: -1.5, high: 0.3 }; // is always in sight
const MARGIN = 0.15;
/** @type {Record<string, number>} */
const KEYS = { ArrowUp: STEP, ArrowRight: STEP, ArrowDown: -STEP, ArrowLeft: -STEP };

export class TauLine {
  /**
   * `acts`: `preview(tau)` while the line moves, null when it is over; `set(tau)`.
   * @param {{ preview: (tau: number | null) => void, set: (tau: number) => void }} acts
   */
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-tau");
    this.dots = make("div", "sdvg-tau-dots", "", { role: "img" });
    this.line = make("div", "sdvg-tau-line", "", {
      role: "slider",
      tabindex: 0,
      "aria-orientation": "vertical",
      "aria-label": "tau",
    });
    this.text = this.line.appendChild(make("span"));
    this.element.append(this.dots, this.line);
    /** @type {number | null} */
    this.dragged = null;
    this.tau = 0;
    this.spoken = ""; // what the tau that is tried would make
    this.min = -3;
    this.max = 3;
    this.span = SPAN;
    this.listen();
  }

  listen() {
    const { line } = this;
    line.addEventListener("pointerdown", (event) => this.take(event));
    line.addEventListener("pointermove", (event) => {
      if (this.dragged !== null) this.move(this.valueAt(event));
    });
    line.addEventListener("pointerup", () => this.drop());
    line.addEventListener("pointercancel", () => this.cancel());
    line.addEventListener("blur", () => this.drop());
    line.addEventListener("keydown", (event) => this.onKey(event));
  }

  /**
   * Show the scores of `count` blocks, and a `tau` between `min` and `max`.
   * @param {{ tau: number, min: number, max: number, events: BlockEvent[], count: number }} gate
   */
  show({ tau, min, max, events, count }) {
    Object.assign(this, { tau, min, max });
    const shown = events.slice(0, count);
    const scores = shown.map(({ score }) => (Number.isFinite(score) ? score : null));
    const known = scores.filter((score) => score !== null);
    if (this.dragged === null) {
      const low = Math.min(...known, tau, SPAN.low) - MARGIN;
      this.span = { low, high: Math.max(...known, tau, SPAN.high) + MARGIN };
    }
    while (this.dots.children.length < count) this.dots.append(make("i"));
    while (this.dots.children.length > count) this.dots.lastElementChild?.remove();
    for (const [i, dot] of [...this.dots.querySelectorAll("i")].entries()) {
      const score = scores[i] ?? null;
      dot.classList.toggle("none", score === null);
      dot.classList.toggle("partly", Boolean(events[i]?.unscored));
      if (score !== null) dot.style.setProperty("--at", String(this.share(score)));
    }
    const list = scores.flatMap((score, i) =>
      score === null ? [] : [`${i + 1}: ${score.toFixed(2)}`],
    );
    const label = text("scores", { scores: list.join(", ") || text("noScores") });
    this.dots.setAttribute("aria-label", label);
    this.draw(this.dragged ?? tau);
  }

  /** @param {number} value */
  share(value) {
    return (value - this.span.low) / (this.span.high - this.span.low);
  }

  /**
   * @param {number} tau
   */
  draw(tau) {
    const value = `tau ${tau.toFixed(2)}`;
    this.line.style.setProperty("--at", String(this.share(tau)));
    this.line.ariaValueMin = String(this.min);
    this.line.ariaValueMax = String(this.max);
    this.line.ariaValueNow = String(tau);
    this.line.ariaValueText = this.spoken ? `${value}: ${this.spoken}` : value;
    this.text.textContent = value; // the forecast says the rest
    this.text.classList.toggle("below", this.share(tau) > 0.5);
    this.line.title = text("dragTau");
  }

  /**
   * Say to a screen reader what the tau that is tried would make.
   * @param {string} forecast
   */
  say(forecast) {
    if (this.dragged === null) return;
    this.spoken = forecast;
    this.draw(this.dragged);
  }

  /** @param {number} tau */
  fit(tau) {
    return Math.max(this.min, Math.min(this.max, Math.round(tau * ROUND) / ROUND));
  }

  /** @param {PointerEvent} event */
  valueAt({ clientY }) {
    const { top, height } = this.element.getBoundingClientRect();
    const share = 1 - (clientY - top) / height;
    return this.fit(this.span.low + share * (this.span.high - this.span.low));
  }

  /** @param {PointerEvent} event */
  take(event) {
    if (event.button) return;
    event.stopPropagation(); // else it drags the node
    event.preventDefault();
    this.line.setPointerCapture(event.pointerId);
    this.line.focus({ preventScroll: true });
    this.dragged = this.tau;
  }

  /** @param {number} tau */
  move(tau) {
    this.dragged = tau;
    this.spoken = "";
    this.draw(tau);
    this.acts.preview(tau);
  }

  drop() {
    const tau = this.dragged;
    if (tau === null) return;
    this.dragged = null;
    this.spoken = "";
    this.acts.preview(null);
    if (tau !== this.tau) this.acts.set(tau);
  }

  cancel() {
    this.dragged = null;
    this.spoken = "";
    this.acts.preview(null);
    this.draw(this.tau);
  }

  /**
   * The arrows move the line, and Enter or leaving it sets tau; Escape leaves it as it was.
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = KEYS[event.key];
    if (by) this.move(this.fit((this.dragged ?? this.tau) + by));
    else if (event.key === "Enter") this.drop();
    else if (event.key === "Escape" && this.dragged !== null) this.cancel();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
