// A contact sheet: the takes of one block side by side, made only up to it.
import { make, makeButton } from "./dom.js";
import { bitmapOf, fetchSprite } from "./sprites.js";
import { text } from "./words.js";

const TAKEN = "dialog, input, textarea, [contenteditable], [role=menu], [role=dialog]";
/** @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** The sheet's elements. */
export class Sheet {
  /** @param {{ close: () => void, enlarge: () => void, paint: Paint }} acts */
  constructor(acts) {
    this.acts = acts;
    this.drawn = "";
    this.element = make("div", "sdvg-sheet");
    this.cells = make("div", "sdvg-cells", "", { role: "radiogroup" });
    this.tools = make("div", "sdvg-tools");
    this.element.append(this.cells, this.tools);
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.open = new AbortController();
  }

  /**
   * While it is shown, Escape closes it wherever the focus is, unless something there takes that key itself.
   * @param {boolean} on
   */
  listen(on) {
    this.open.abort();
    this.open = new AbortController();
    const { signal } = this.open;
    /** @param {KeyboardEvent} event */
    const onEscape = (event) => {
      const { target } = event;
      const isTaken = target instanceof Element && target.closest(TAKEN);
      if (event.key !== "Escape" || isTaken || document.querySelector("dialog[open]")) return;
      event.stopPropagation();
      this.acts.close();
    };
    if (on) document.addEventListener("keydown", onEscape, { signal, capture: true });
  }

  /** @param {number | string} take */
  cellOf(take) {
    /** @type {HTMLElement | null} */
    const cell = this.element.querySelector(`[data-take="${take}"]`);
    return cell;
  }

  /**
   * Show takes; one without an event is still made.
   * @param {string} title
   * @param {Take[]} takes
   */
  show(title, takes) {
    const cells = takes.map(({ key, label, event, old }) => [key, label, event?.run, old]);
    const drawn = JSON.stringify([title, ...cells]);
    if (drawn === this.drawn) {
      // The same cells, which keep the focus.
      for (const { key, chosen } of takes)
        this.cellOf(key)?.setAttribute("aria-checked", String(chosen));
      return;
    }
    this.drawn = drawn;
    this.cells.setAttribute("aria-label", title);
    this.tools.replaceChildren(
      newTool("✕", text("close"), () => this.leave()),
      newTool("⤢", text("enlarge"), () => this.acts.enlarge()),
    );
    const active = document.activeElement;
    const focused =
      active instanceof HTMLElement && this.element.contains(active) ? active.dataset.take : "";
    this.cells.replaceChildren(...takes.map((take) => this.cell(take)));
    if (focused) this.cellOf(focused)?.focus({ preventScroll: true });
  }

  /** @param {Take} take */
  cell({ key, event, label, old, chosen, act }) {
    const cell = makeButton("sdvg-take", "", act, {
      role: "radio",
      "data-take": key,
      "aria-checked": chosen,
      "aria-label": label,
      title: label,
    });
    const canvas = make("canvas", old ? "blank old" : "blank");
    cell.append(canvas, make("span", "", label));
    cell.disabled = !event;
    if (!event?.sprite) return cell;
    const { frames } = event.sprite;
    /** @param {number} share */
    const paint = (share) => {
      const frame = Math.max(0, Math.min(frames - 1, Math.floor(share * frames)));
      if (bitmapOf(event)) this.acts.paint(canvas, event, frame);
    };
    fetchSprite(event, () => paint(0.5), new AbortController().signal);
    cell.addEventListener("pointermove", ({ clientX }) => {
      const { left, width } = cell.getBoundingClientRect();
      paint((clientX - left) / width);
    });
    cell.addEventListener("pointerleave", () => paint(0.5));
    return cell;
  }

  /** Back to the strip, if it is enlarged; else to the film. */
  leave() {
    const dialog = this.element.closest("dialog");
    if (dialog) dialog.close();
    else this.acts.close();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {HTMLElement[]} */
    const cells = [...this.element.querySelectorAll("button")].filter(({ disabled }) => !disabled);
    const by = STEPS[event.key];
    const at = cells.findIndex((cell) => cell === document.activeElement);
    if (by) cells[(at + by + cells.length) % cells.length]?.focus();
    else if (event.key === "Escape") this.leave();
    else if (event.key === "e") this.acts.enlarge();
    if (by || ["Escape", "Enter", " ", "e"].includes(event.key)) event.stopPropagation();
    if (by || event.key === "Escape") event.preventDefault();
  }
}

/**
 * @param {string} sign
 * @param {string} label
 * @param {() => void} act
 */
function newTool(sign, label, act) {
  return makeButton("sdvg-button", sign, act, { title: label, "aria-label": label });
}
