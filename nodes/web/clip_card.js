// The card of footage between shots: its name, and where it is cut.
import { make, makeButton, nameElement } from "./dom.js";
import { secondsIn } from "./prompt_lines.js";
import { text } from "./words.js";

/**
 * @typedef {object} ClipActs
 * @property {() => void} menu
 * @property {() => void} change what the boxes say
 */

export class ClipCard {
  /** @param {ClipActs} acts */
  constructor(acts) {
    this.element = make("li", "sdvg-shot sdvg-clip", "", { role: "group" });
    this.title = make("span", "sdvg-shot-title");
    this.more = makeButton("sdvg-button", "⋯", acts.menu, {
      "aria-haspopup": "menu",
      "aria-expanded": false,
    });
    const top = make("div", "sdvg-shot-top");
    top.append(this.title, this.more);
    const second = { type: "number", min: 0, step: 0.5 };
    this.name = make("input", "", "", { type: "text", maxlength: 12, spellcheck: false });
    this.first = make("input", "", "", second);
    this.last = make("input", "", "", second);
    this.boxes = [this.name, this.first, this.last];
    this.words = this.boxes.map(() => make("span"));
    this.element.append(top, ...this.boxes.map((box, i) => this.newLabel(box, this.words[i])));
    for (const box of this.boxes) {
      box.addEventListener("change", acts.change);
      box.addEventListener("keydown", keepKey);
    }
  }

  /**
   * @param {HTMLElement} box
   * @param {HTMLElement} word
   */
  newLabel(box, word) {
    const label = make("label", "sdvg-clip-row");
    label.append(word, box);
    return label;
  }

  /** @param {Footage} clip */
  draw({ name, span }) {
    const key = name.slice(1);
    const seconds = secondsIn(span);
    const title = text("clip", { clip: key });
    this.title.textContent = title;
    this.element.setAttribute("aria-label", title);
    nameElement(this.more, text("clipMenu", { clip: key }));
    this.last.placeholder = text("clipEnd");
    const words = [text("clipName"), text("clipIn"), text("clipOut")];
    const values = [key, seconds?.first ?? "", seconds?.last ?? ""];
    for (const [i, box] of this.boxes.entries()) {
      this.words[i].textContent = words[i];
      if (document.activeElement !== box || box.dataset.shown !== values[i]) box.value = values[i];
      box.dataset.shown = values[i];
    }
  }

  /** Show what is written again. */
  undo() {
    for (const box of this.boxes) box.value = box.dataset.shown ?? "";
  }
}

/**
 * No key of a box is one of ComfyUI's shortcuts, but for those with Control.
 * @param {KeyboardEvent} event
 */
function keepKey(event) {
  if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
}
