// The scores of the blocks and tau, the line that they are compared with. It can be dragged; until it is let go nothing is written.
import { make } from "./common.js";
import { words } from "./strip_words.js";

const STEP = 0.05; // of a key
const ROUND = 100; // a dragged tau has two decimals
const SPAN = { low: -1.5, high: 0.3 }; // is always in sight
const MARGIN = 0.15;

export class TauLine {
  /** `acts`: `preview(tau)` while the line moves, null when it is over, which returns what the next run makes again; `set(tau)`. */
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-tau");
    this.dots = this.element.appendChild(make("div", "sdvg-tau-dots", "", { role: "img" }));
    this.line = this.element.appendChild(make("div", "sdvg-tau-line", "", { role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-label": "tau" }));
    this.text = this.line.appendChild(make("span", ""));
    this.line.addEventListener("pointerdown", (event) => this.take(event));
    this.line.addEventListener("pointermove", (event) => this.dragged !== null && this.move(this.valueAt(event)));
    this.line.addEventListener("pointerup", () => this.drop());
    this.line.addEventListener("pointercancel", () => this.cancel());
    this.line.addEventListener("blur", () => this.drop());
    this.line.addEventListener("keydown", (event) => this.onKey(event));
    this.dragged = null;
  }

  /** Show the scores of `count` blocks, and a `tau` between `min` and `max`. */
  show({ tau, min, max, events, count }) {
    Object.assign(this, { tau, min, max });
    const scores = events.slice(0, count).map(({ score }) => (Number.isFinite(score) ? score : null));
    const known = scores.filter((score) => score !== null);
    if (this.dragged === null) this.span = { low: Math.min(...known, tau, SPAN.low) - MARGIN, high: Math.max(...known, tau, SPAN.high) + MARGIN };
    const dots = Array.from({ length: count }, (_, i) => this.dots.children[i] ?? this.dots.appendChild(make("i", "")));
    while (this.dots.children.length > count) this.dots.lastChild.remove();
    dots.forEach((dot, i) => {
      dot.classList.toggle("none", !Number.isFinite(scores[i]));
      dot.classList.toggle("partly", Boolean(events[i]?.unscored));
      if (Number.isFinite(scores[i])) dot.style.setProperty("--at", this.share(scores[i]));
    });
    this.dots.setAttribute("aria-label", words().scores(scores.flatMap((score, i) => (score === null ? [] : [`${i + 1}: ${score.toFixed(2)}`])).join(", ")));
    this.draw(this.dragged ?? tau, "");
  }

  share(value) {
    return (value - this.span.low) / (this.span.high - this.span.low);
  }

  draw(tau, told) {
    const text = told ? `tau ${tau.toFixed(2)}: ${told}` : `tau ${tau.toFixed(2)}`;
    this.line.style.setProperty("--at", this.share(tau));
    for (const [name, value] of Object.entries({ valuemin: this.min, valuemax: this.max, valuenow: tau, valuetext: text })) this.line.setAttribute(`aria-${name}`, value);
    this.text.textContent = `tau ${tau.toFixed(2)}`; // the forecast says the rest
    this.text.classList.toggle("below", this.share(tau) > 0.5);
    this.line.title = words().dragTau;
  }

  valueAt({ clientY }) {
    const { top, height } = this.element.getBoundingClientRect();
    const share = 1 - (clientY - top) / height;
    const value = this.span.low + share * (this.span.high - this.span.low);
    return Math.max(this.min, Math.min(this.max, Math.round(value * ROUND) / ROUND));
  }

  take(event) {
    if (event.button) return;
    event.stopPropagation(); // else it drags the node
    event.preventDefault();
    this.line.setPointerCapture(event.pointerId);
    this.line.focus({ preventScroll: true });
    this.dragged = this.tau;
  }

  move(tau) {
    this.dragged = tau;
    this.draw(tau, this.acts.preview(tau));
  }

  drop() {
    const tau = this.dragged;
    if (tau === null) return;
    this.dragged = null;
    this.acts.preview(null);
    if (tau !== this.tau) this.acts.set(tau);
  }

  cancel() {
    this.dragged = null;
    this.acts.preview(null);
    this.draw(this.tau, "");
  }

  /** The arrows move the line, and Enter or leaving it sets tau; Escape leaves it as it was. */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowUp: STEP, ArrowRight: STEP, ArrowDown: -STEP, ArrowLeft: -STEP }[event.key];
    if (by) this.move(Math.max(this.min, Math.min(this.max, Math.round(((this.dragged ?? this.tau) + by) * ROUND) / ROUND)));
    else if (event.key === "Enter") this.drop();
    else if (event.key === "Escape" && this.dragged !== null) this.cancel();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
