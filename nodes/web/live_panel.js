// The elements of a live session on a strip: a box for words, buttons, and what is said of the session. It knows nothing of servers.
import { make, makeButton, nameElement } from "./dom.js";
import { text } from "./words.js";

/**
 * @typedef {object} PanelActs
 * @property {() => void} start
 * @property {(how: { cut?: boolean, fresh?: boolean }) => void} send what is typed; with a cut or a fresh shot also without words
 * @property {() => void} again
 * @property {() => void} hold hold the session, or go on
 * @property {() => void} end
 * @property {() => string} newest the words that were sent last
 */

/**
 * What is said of a session. `number`: the block that is shown, `lines`: how it stands, `note`: what was sent, or is waited for.
 * @typedef {{ number: number, held: boolean, ending: boolean, lines: string[], note: string }} PanelState
 */

export class LivePanel {
  /**
   * @param {import("./strip_view.js").StripView} view
   * @param {PanelActs} acts
   */
  constructor(view, acts) {
    this.acts = acts;
    this.strip = view.element;
    this.isAwaited = false; // somebody pressed the button
    this.start = makeButton("sdvg-button sdvg-live-start", "", () => {
      this.isAwaited = true;
      acts.start();
    });
    this.box = make("input", "", "", { type: "text", spellcheck: false, autocomplete: "off" });
    this.cut = this.makeAct("", () => acts.send({ cut: true }));
    this.fresh = this.makeAct("", () => acts.send({ fresh: true }));
    this.again = this.makeAct(" sdvg-live-act", acts.again);
    this.hold = this.makeAct(" sdvg-live-act", acts.hold);
    this.stop = makeButton("sdvg-button sdvg-live-act sdvg-live-end", "", acts.end);
    this.row = make("div", "sdvg-live-row");
    this.row.append(this.box, this.cut, this.fresh);
    this.pace = make("div", "sdvg-live-pace");
    this.note = make("div", "sdvg-live-note", "", { role: "status" });
    this.refusal = make("div", "sdvg-refusal", "", { role: "alert" });
    this.state = make("div", "sdvg-live-state");
    this.state.append(this.pace, this.note, this.refusal);
    view.side.prepend(this.state);
    view.controls.before(this.row);
    view.controls.append(this.again, this.hold, this.stop, this.start);
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("keyup", (event) => event.stopPropagation());
  }

  /**
   * A button that steers. Who presses it with the mouse types next, and goes on in the box: elsewhere on the strip letters act.
   * @param {string} more further classes
   * @param {() => void} act
   */
  makeAct(more, act) {
    return makeButton(`sdvg-button${more}`, "", ({ detail: isMouse }) => {
      act();
      if (isMouse) this.box.focus({ preventScroll: true });
    });
  }

  /**
   * Enter sends what is typed: with Shift with a hard cut, with Alt as a fresh shot. The arrow up brings the newest words back, Escape
   * leaves the box. Control and Enter run the workflow, as everywhere.
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const { key, shiftKey, altKey, ctrlKey, metaKey } = event;
    if (event.isComposing || ctrlKey || metaKey) return;
    event.stopPropagation(); // none of ComfyUI's shortcuts, nor of the strip's
    if (key === "Enter") this.acts.send({ cut: shiftKey, fresh: altKey && !shiftKey });
    else if (key === "Escape") (this.isOn ? this.hold : this.start).focus({ preventScroll: true });
    else if (key === "ArrowUp" && !this.box.value) this.box.value = this.acts.newest();
    else return;
    event.preventDefault();
  }

  /**
   * Show a session; null: none, and whether one can be begun: `problem` says why not.
   * @param {PanelState | null} state
   * @param {string} problem
   */
  show(state, problem) {
    const wasOn = this.isOn;
    this.strip.classList.toggle("living", Boolean(state));
    if (state) this.draw(state);
    else this.offer(problem);
    if (state && !wasOn) this.open();
    if (!state && wasOn) this.close();
  }

  /** Who began the session types at once, unless they type elsewhere by now. */
  open() {
    const isTyping = document.activeElement?.matches("input, textarea, select");
    if (this.isAwaited && !isTyping) this.box.focus({ preventScroll: true });
    this.isAwaited = false;
  }

  get isOn() {
    return this.strip.classList.contains("living");
  }

  /** @param {string} problem */
  offer(problem) {
    this.nameAll(1, false, false);
    label(this.start, text("live.start"), problem || text("live.startIs"));
    this.start.disabled = problem !== "";
  }

  /**
   * The words that nobody sent stay in the box, for the next session. Who types in it goes on there, until they leave it: a space on a
   * button would press that.
   */
  close() {
    this.refusal.textContent = "";
    const active = document.activeElement;
    const parts = [this.cut, this.fresh, this.again, this.hold, this.stop];
    if (parts.some((part) => part.contains(active))) this.start.focus({ preventScroll: true });
  }

  /** @param {PanelState} state */
  draw({ number, held, ending, lines, note }) {
    this.nameAll(Math.max(1, number), held, ending);
    this.stop.disabled = ending;
    this.again.disabled = number < 1 || ending;
    this.say(lines, note);
  }

  /**
   * Name what is on the panel, whether it is shown or not.
   * @param {number} number the block that is shown
   * @param {boolean} held
   * @param {boolean} ending
   */
  nameAll(number, held, ending) {
    this.box.placeholder = text("live.box");
    nameElement(this.box, text("live.boxIs"));
    label(this.cut, text("live.cut"), text("live.cutIs"));
    label(this.fresh, text("live.fresh"), text("live.freshIs"));
    this.nameBlock(number);
    label(
      this.hold,
      held ? text("live.resume") : text("live.hold"),
      held ? text("live.resumeIs") : text("live.holdIs"),
    );
    label(this.stop, ending ? text("live.ending") : text("live.end"), text("live.endIs"));
  }

  /**
   * Name the block that is shown.
   * @param {number} number
   */
  nameBlock(number) {
    label(this.again, text("live.again", { number }), text("live.againIs", { number }));
  }

  /**
   * @param {string[]} lines
   * @param {string} note
   */
  say(lines, note) {
    const shown = lines.join("\n");
    if (this.pace.textContent !== shown) this.pace.textContent = shown;
    if (this.note.textContent !== note) this.note.textContent = note;
  }

  /**
   * Say why something was not done; empty: it was.
   * @param {string} sentence
   */
  refuse(sentence) {
    this.refusal.textContent = sentence;
  }
}

/**
 * @param {HTMLButtonElement} button
 * @param {string} caption
 * @param {string} title
 */
function label(button, caption, title) {
  if (button.textContent !== caption) button.textContent = caption;
  if (button.title !== title) button.title = title;
}
