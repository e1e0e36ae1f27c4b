// One square per block, as a list that is walked with the arrow keys.
import { ROUTER, outcomeOf } from "./blocks.js";
import { make, nameElement } from "./dom.js";
import { SIDE } from "./sizes.js";
import { text } from "./words.js";
import { sentenceOf } from "./strip_sentences.js";

const MANY = 28; // more squares than this are drawn small, without numbers
/** @type {Record<string, number>} */
const STEPS = {
  ArrowRight: 1,
  ArrowDown: 1,
  ArrowLeft: -1,
  ArrowUp: -1,
  Home: -Infinity,
  End: Infinity,
};
/** @type {Record<string, number>} */
const SCRUBS = { ArrowRight: 1, ArrowLeft: -1 };

/**
 * @typedef {object} SquareActs
 * @property {(number: number | null, anchor?: HTMLElement) => void} open its menu
 * @property {(number: number, key: string) => boolean} key whether it did something
 * @property {(number: number | null, share?: number) => void} look at a block
 * @property {(number: number) => void} choose
 * @property {(number: number) => void} enlarge
 * @property {(by: number) => void} step
 * @property {(number: number) => void} undo when a step is undone while a square has the focus
 * @property {(number: number) => void} name the button below after a block
 * @property {(number: number) => void} picture paint a block in its new square
 */

export class Squares {
  /** @param {SquareActs} acts */
  constructor(acts) {
    this.acts = acts;
    // In Nodes 2.0 it captures the wheel once one has the focus.
    this.element = make("ol", "sdvg-squares", "", { "data-capture-wheel": true });
    this.message = make("div", "sdvg-status", "", { role: "status" });
    this.at = 1;
    /** @type {number | null} */
    this.shown = null; // whose frame the film shows
    this.named = 0; // the block that the button below is named after
    /** @type {number | null} */
    this.spoken = null; // what the message is about
    this.thumbSide = SIDE.least;
    this.listen();
  }

  listen() {
    /**
     * @param {string} name
     * @param {(number: number, event: any) => void} act
     */
    const on = (name, act) =>
      this.element.addEventListener(name, (event) => {
        const { target } = event;
        const square = target instanceof Element && target.closest("[data-number]");
        if (square instanceof HTMLElement) act(Number(square.dataset.number), event);
      });
    // Enter and the space bar click too, without a count of clicks.
    on("click", (number, { detail }) => {
      if (detail) this.acts.choose(number);
      else this.acts.open(number, this.square(number));
    });
    on("dblclick", (number) => this.acts.enlarge(number));
    this.element.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      event.stopPropagation(); // not ComfyUI's own, between two squares neither
    });
    on("contextmenu", (number) => {
      this.acts.choose(number);
      this.acts.open(number, this.square(number));
    });
    on("keydown", (number, event) => this.onKey(number, event));
    on("pointermove", (number, event) => {
      const side = this.count > MANY ? SIDE.many : this.thumbSide;
      this.acts.look(number, (event.offsetX + 1) / side);
    });
    this.element.addEventListener("pointerleave", () => this.acts.look(null));
    on("focusin", (number) => this.acts.choose(number));
  }

  /**
   * @param {number} number
   * @param {KeyboardEvent} event
   */
  onKey(number, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (["z", "y"].includes(event.key.toLowerCase())) this.acts.undo(number);
      return;
    }
    if (event.shiftKey && event.key in SCRUBS) {
      this.acts.step(SCRUBS[event.key]);
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    const by = STEPS[event.key];
    const to = by ? Math.max(1, Math.min(number + by, this.count)) : null;
    if (to) this.square(to)?.focus();
    const isTaken = to !== null || this.acts.key(number, event.key);
    if (isTaken) event.preventDefault();
    // None of ComfyUI's shortcuts.
    if (isTaken || ["Enter", " "].includes(event.key)) event.stopPropagation();
  }

  get count() {
    return this.element.children.length;
  }

  /** The square with the focus, by its number; null if none has it. */
  get focused() {
    const active = document.activeElement;
    const isOurs = active instanceof HTMLElement && this.element.contains(active);
    return isOurs ? Number(active.dataset.number) : null;
  }

  /** @param {number | null} number */
  square(number) {
    const square = number ? this.element.children[number - 1]?.firstChild : null;
    return square instanceof HTMLElement ? square : undefined;
  }

  /** @param {number} number */
  thumb(number) {
    return this.square(number)?.querySelector("canvas") ?? undefined;
  }

  /**
   * Choose a square: it is reached with the Tab key, the others from there with the arrows.
   * @param {number} number
   */
  rove(number) {
    this.reach(number);
    this.name(this.at);
  }

  /** @param {number} number */
  reach(number) {
    this.at = Math.min(number, this.count);
    this.element.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.square(this.at)?.setAttribute("tabindex", "0");
  }

  /** @param {number} number */
  name(number) {
    this.named = number;
    this.acts.name(number);
  }

  /**
   * Mark the square whose frame the film shows.
   * @param {number | null} number
   */
  mark(number) {
    if (number === this.shown) return;
    this.square(this.shown)?.classList.remove("at");
    this.square(number)?.classList.add("at");
    this.shown = number;
    if (number) this.name(number);
  }

  /**
   * As wide as the frames of the video are, a square.
   * @param {number} aspect
   */
  shape(aspect) {
    this.thumbSide = Math.round(Math.max(SIDE.least, Math.min(31 * aspect, SIDE.most)));
    return this.thumbSide;
  }

  /**
   * Have `count` squares. Those that were there stay, and new ones get the picture of their block, if it was made.
   * @param {number} count
   */
  size(count) {
    if (count === this.count) return;
    const { focused } = this;
    this.element.setAttribute("aria-label", text("route"));
    this.element.classList.toggle("many", count > MANY);
    while (this.count > count) this.element.lastChild?.remove();
    while (this.count < count) {
      this.element.append(newSquare(this.count + 1));
      this.acts.picture(this.count);
    }
    this.reach(Math.max(1, this.at));
    if (!this.named || this.named > count) this.name(this.at);
    if (focused && focused > count) this.square(count)?.focus({ preventScroll: true });
  }

  /** @param {Square} square */
  draw(square) {
    const { number, event, letter, take, usable } = square;
    const element = this.square(number);
    const thumb = this.thumb(number);
    if (!element || !thumb) return;
    const seconds = square.from.toFixed(1);
    const from = square.isAdded ? text("secondAdded", { seconds }) : text("second", { seconds });
    if (element.parentElement) element.parentElement.dataset.from = from;
    if (!event?.sprite) thumb.className = "blank";
    const outcome = event && outcomeOf(event);
    element.style.backgroundColor = outcome?.colour ?? "";
    element.style.color = outcome?.ink ?? "";
    const marks = {
      made: event,
      earlier: event?.reused,
      again: square.again,
      uncertain: square.uncertain,
      old: square.old && event,
      kept: square.kept,
    };
    for (const [name, on] of Object.entries(marks)) element.classList.toggle(name, Boolean(on));
    setState(element, "outcome", event?.outcome);
    setState(element, "letter", letter === ROUTER ? undefined : letter);
    setState(element, "take", take > 1 ? String(take) : undefined);
    element.setAttribute("aria-disabled", String(!usable));
    const sentence = sentenceOf(square);
    if (element.title === sentence) return;
    if (number === this.spoken) this.say(null); // it is so no more
    nameElement(element, sentence);
  }

  /**
   * Whether anything can be asked of a block.
   * @param {number} number
   */
  isUsable(number) {
    return this.square(number)?.getAttribute("aria-disabled") === "false";
  }

  /**
   * Say to a screen reader what a square says; null: nothing.
   * @param {number | null} number
   */
  say(number) {
    this.spoken = number;
    this.message.textContent = this.square(number)?.title ?? "";
  }

  /**
   * Bring a square into view as the page is drawn, which lays it out anyway. Not scrollIntoView, which would also scroll
   * everything around the strip.
   * @param {number} number
   */
  reveal(number) {
    const { element } = this;
    requestAnimationFrame(() => {
      const square = this.square(number);
      if (!square) return;
      element.scrollTop = square.offsetTop - element.offsetTop - element.clientHeight / 2;
    });
  }
}

/** @param {number} number */
function newSquare(number) {
  const item = make("li");
  const button = make("button", "", "", {
    type: "button",
    tabindex: -1,
    "data-number": number,
    "aria-haspopup": "menu",
    "aria-expanded": false,
  });
  button.append(make("canvas", "blank"), String(number));
  item.append(button);
  return item;
}

/**
 * @param {HTMLElement} element
 * @param {string} name
 * @param {string | undefined} value
 */
function setState(element, name, value) {
  if (value === undefined) delete element.dataset[name];
  else element.dataset[name] = value;
}
