// The card of one shot: picture, prompt, length, and what can be done with it.
import { make, makeButton, nameElement } from "./dom.js";
import { bitmapOf, fetchSprite, framesIn, paintFrame } from "./sprites.js";
import { blocksText, text } from "./words.js";

/** @type {Record<string, number>} */
const MOVES = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

/**
 * @typedef {object} CardActs
 * @property {() => void} choose its first block
 * @property {() => void} menu
 * @property {() => void} take
 * @property {() => void} lock
 * @property {() => void} cut
 * @property {() => void} fresh
 * @property {(by: number) => void} move by one place
 * @property {() => void} prompt
 * @property {() => void} typing in the prompt
 * @property {() => void} length
 * @property {(event: KeyboardEvent) => void} key in the prompt
 */

/**
 * A shot as its card shows it; blocks are the run's.
 * @typedef {object} ShownShot
 * @property {number} number of the shot
 * @property {number} first
 * @property {number} last
 * @property {number} made how many of its blocks the run makes
 * @property {number} second at which it begins
 * @property {number} line of the prompt at which it begins; 0 if that is its first block too
 * @property {number} seconds
 * @property {string} prompt
 * @property {string} strength that its line gives, or empty
 * @property {boolean} cut
 * @property {boolean} fixed whether all of it stays
 * @property {number} least blocks
 * @property {number} most
 * @property {boolean} lasts whether its end stays
 * @property {boolean} again
 * @property {boolean} old
 * @property {boolean} oldLast
 */

export class ShotCard {
  /** @param {CardActs} acts */
  constructor(acts) {
    this.element = make("li", "sdvg-shot", "", { role: "group" });
    this.canvas = make("canvas", "blank", "", { "aria-hidden": true });
    this.title = makeButton("sdvg-shot-title", "", acts.choose);
    this.more = makeButton("sdvg-button", "⋯", acts.menu, {
      "aria-haspopup": "menu",
      "aria-expanded": false,
    });
    const top = make("div", "sdvg-shot-top");
    top.append(this.canvas, this.title, this.more);
    this.area = make("textarea", "", "", { rows: 2, spellcheck: false });
    this.count = make("input", "", "", { type: "number", step: 1 });
    this.seconds = make("span");
    const length = make("div", "sdvg-shot-length");
    const label = make("label", "sdvg-shot-length");
    label.append(this.count, this.seconds);
    this.fresh = makeButton("sdvg-button sdvg-shot-switch sdvg-shot-fresh", "", acts.fresh);
    length.append(label, this.fresh);
    this.take = makeButton("sdvg-button sdvg-shot-take", "", acts.take);
    this.keep = makeButton("sdvg-button sdvg-shot-keep", "", acts.lock);
    this.cut = makeButton("sdvg-button sdvg-shot-switch sdvg-shot-cut", "", acts.cut);
    const row = make("div", "sdvg-shot-row");
    row.append(this.take, this.keep, this.cut);
    this.element.append(top, this.area, length, row);
    this.element.addEventListener("keydown", (event) => this.onMoveKey(event, acts.move));
    this.area.addEventListener("change", acts.prompt);
    this.area.addEventListener("input", acts.typing);
    this.area.addEventListener("keydown", acts.key);
    this.count.addEventListener("change", acts.length);
    this.count.addEventListener("keydown", (event) => this.onCountKey(event));
    this.first = 1;
    this.last = 1;
    this.made = 1; // blocks that are shown
    this.prompt = ""; // that is shown
    this.pictured = ""; // the block whose picture is shown, or fetched
  }

  /**
   * No key of the length is one of ComfyUI's shortcuts. Undoing takes back what is typed, or else the last edit, which the page does
   * where the focus is in no box.
   * @param {KeyboardEvent} event
   */
  onCountKey(event) {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
    else if (["z", "y"].includes(event.key.toLowerCase())) {
      event.preventDefault();
      const isTyped = this.count.value !== String(this.made);
      this.count.value = String(this.made);
      if (isTyped) return;
      this.title.focus({ preventScroll: true });
      this.title.dispatchEvent(new KeyboardEvent("keydown", event));
    }
  }

  /**
   * Alt and an arrow move the shot, where they do not move in what is typed.
   * @param {KeyboardEvent} event
   * @param {(by: number) => void} move
   */
  onMoveKey(event, move) {
    const by = MOVES[event.key];
    if (!event.altKey || !by || event.target === this.area || event.target === this.count) return;
    event.preventDefault(); // the browser goes back by these
    event.stopPropagation();
    move(by);
  }

  /** Whether other words are typed in the prompt, and not entered yet. */
  get isTyped() {
    return document.activeElement === this.area && this.area.value.trim() !== this.prompt;
  }

  /** @param {ShownShot} shown */
  draw(shown) {
    const { number: shot, first, last, made, prompt } = shown;
    this.first = first;
    this.last = last;
    const isCounting = document.activeElement === this.count && this.made === made;
    if (!isCounting) this.count.value = String(made);
    this.made = made;
    this.element.hidden = !made; // the clip's
    this.element.setAttribute("aria-label", text("shot", { shot }));
    const begins = text("shotAt", { shot, seconds: shown.second.toFixed(1) });
    const line = shown.line ? text("shotLine", { begins, line: shown.line }) : begins;
    this.title.textContent = [line, shown.strength].filter(Boolean).join(" · ");
    const blocks = blocksText(first, last);
    this.title.title = shown.oldLast ? `${blocks} · ${text("isOld")}` : blocks;
    nameElement(this.more, text("shotMenu", { shot }));
    this.area.setAttribute("aria-label", text("shotPrompt", { shot }));
    const emptied = shot > 1 ? text("joinsBefore") : "";
    this.area.placeholder = shown.strength ? text("asBefore") : emptied;
    const isTyping = document.activeElement === this.area && this.prompt === prompt;
    if (!isTyping) this.area.value = prompt;
    this.prompt = prompt;
    this.area.readOnly = shown.fixed;
    const { least: min, most: max } = shown;
    Object.assign(this.count, { min, max, disabled: shown.lasts });
    this.count.setAttribute("aria-label", text("shotBlocks", { shot }));
    this.count.title = text("blocksAllowed", { least: min, most: max });
    this.seconds.textContent = text("blocksLong", {
      count: made,
      seconds: shown.seconds.toFixed(1),
    });
    this.canvas.classList.toggle("again", shown.again);
    this.canvas.classList.toggle("old", shown.old);
  }

  /**
   * Show the picture that the block's square shows too.
   * @param {BlockEvent | undefined} event
   */
  drawThumb(event) {
    const block = event?.sprite ? `${event.run}/${event.number}` : "";
    const isSame = block === this.pictured;
    this.pictured = block;
    if (!block || !isSame) this.canvas.classList.add("blank");
    if (!event || !block) return;
    const paint = () => {
      if (this.pictured === block) paintFrame(this.canvas, event, framesIn([event]) >> 1);
    };
    if (bitmapOf(event)) paint();
    else if (!isSame) fetchSprite(event, paint, new AbortController().signal);
  }
}
