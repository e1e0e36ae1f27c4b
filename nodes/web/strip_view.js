// The elements of one strip: squares, film, legend, and the button that stops the run. It knows nothing of nodes and servers.
import { keepTyped, leaveUndo, make, makeButton, nameElement } from "./dom.js";
import { HEIGHT, SIDE, setSizes } from "./sizes.js";
import { DriftLine } from "./strip_drift.js";
import { detailOf, nextText, summaryOf, tally } from "./strip_sentences.js";
import { Sheet } from "./strip_sheet.js";
import { Squares } from "./strip_squares.js";
import { text } from "./words.js";

/**
 * @typedef {Omit<import("./strip_squares.js").SquareActs, "name"> & {
 *   closeSheet: () => void, enlargeSheet: () => void, paint: Paint, play: () => void, touch: () => void,
 *   stop: () => void, shots: () => void }} ViewActs
 */

export class StripView {
  /** @param {ViewActs} acts */
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-route");
    leaveUndo(this.element);
    keepTyped(this.element);
    setSizes(this.element, { ...HEIGHT, many: SIDE.many });
    this.squares = new Squares({ ...acts, name: (number) => this.name(number) });
    this.film = make("canvas", "sdvg-film", "", { role: "img" });
    this.legend = make("div", "sdvg-legend", "", { role: "status" });
    this.error = make("div", "sdvg-error", "", { role: "alert" });
    this.detail = make("div", "sdvg-detail");
    this.next = make("div", "sdvg-next", "", { role: "status" });
    this.side = make("div", "sdvg-side");
    this.side.append(this.legend, this.error, this.detail, this.next);
    this.sheet = new Sheet({
      close: acts.closeSheet,
      enlarge: acts.enlargeSheet,
      paint: acts.paint,
    });
    this.below = make("div", "sdvg-below");
    this.below.append(this.film, this.side, this.sheet.element);
    this.drift = new DriftLine();
    this.player = makeButton("sdvg-button sdvg-play", "", acts.play);
    this.time = make("span", "sdvg-time");
    this.button = makeButton("sdvg-button sdvg-stop", "", acts.stop);
    this.more = makeButton("sdvg-button sdvg-more", "", () => acts.open(this.named, this.more), {
      "aria-haspopup": "menu",
    });
    this.shots = makeButton("sdvg-button sdvg-shots-button", "", acts.shots);
    this.controls = make("div", "sdvg-controls");
    this.controls.append(this.player, this.time, this.button, this.more, this.shots);
    const parts = [this.squares.element, this.below, this.drift.element, this.controls];
    this.element.append(...parts, this.squares.message);
    /** @type {number | null} */
    this.named = null; // the block on the button below
    this.film.addEventListener("dblclick", () => acts.enlarge(this.squares.at));
    for (const name of ["pointermove", "keydown"])
      this.element.addEventListener(name, () => acts.touch());
  }

  /**
   * Have the button below name a block: the one that was chosen or shown last.
   * @param {number} number
   */
  name(number) {
    this.named = number;
    this.more.textContent = text("actions", { number });
  }

  /**
   * As wide as the frames of the video are, a square.
   * @param {number} aspect
   */
  shape(aspect) {
    this.element.style.setProperty("--aspect", String(aspect));
    this.sheet.element.style.setProperty("--aspect", String(aspect)); // in a dialog too
    this.element.style.setProperty("--thumb", `${this.squares.shape(aspect)}px`);
  }

  /**
   * How the film stands: the block that is shown, and seconds.
   * @param {FilmState} state
   */
  showFilm({ playing, number, at, all }) {
    if (this.player.dataset.playing !== String(playing)) {
      this.player.dataset.playing = String(playing);
      this.player.textContent = playing ? "❚❚" : "▶";
      nameElement(this.player, playing ? text("pause") : text("play"));
    }
    this.player.hidden = !all;
    const time = { at: at.toFixed(1), all: all.toFixed(1) };
    this.time.textContent = all ? text("time", time) : "";
    this.squares.mark(number);
  }

  /**
   * Offer the cards of so many shots; 0: they cannot be shown, for the `problem`; null: there is no text.
   * @param {number | null} count
   * @param {string} problem
   */
  offerShots(count, problem) {
    this.shots.hidden = count === null;
    this.shots.disabled = count === 0;
    this.shots.textContent = text("shotsButton");
    this.shots.title = count === 0 ? problem : text("shots");
  }

  /**
   * Show what went wrong, or no longer.
   * @param {string} sentence
   */
  complain(sentence) {
    this.error.textContent = sentence;
    this.error.title = sentence; // where there is no room for all of it
    this.error.dataset.asked = "";
  }

  /**
   * Something is asked of the next run, or a refusal is what it meets: once that is another than before, what went wrong is past.
   * @param {string} asked
   */
  forgive(asked) {
    const { dataset } = this.error;
    if (dataset.asked && dataset.asked !== asked) this.complain("");
    dataset.asked = asked;
  }

  /** @param {boolean} on */
  openShots(on) {
    this.shots.setAttribute("aria-expanded", String(on));
  }

  /**
   * Show the blocks.
   * @param {Square[]} squares
   */
  draw(squares) {
    this.film.setAttribute("aria-label", text("film"));
    this.squares.size(squares.length);
    for (const square of squares) this.squares.draw(square);
  }

  /**
   * What the next run makes again.
   * @param {Inputs} inputs
   * @param {Forecast | null} forecast
   * @param {import("./strip_sentences.js").RunState} state
   * @param {string} refusal
   */
  showNext(inputs, forecast, state, refusal) {
    this.next.textContent = nextText(inputs, forecast, state, refusal);
    this.next.title = this.next.textContent;
    const isNothing = Boolean(forecast && !/[^s]/.test(forecast.blocks));
    this.next.classList.toggle("nothing", isNothing || refusal !== "");
  }

  /**
   * Show a comparison of two runs around the film, or no longer.
   * @param {{ canvas: HTMLElement, captions: HTMLElement[], row: HTMLElement }} comparison
   * @param {boolean} on
   */
  pair({ canvas, captions, row }, on) {
    this.film.before(canvas);
    this.below.append(...captions);
    this.below.after(row);
    this.element.classList.toggle("pairing", on);
    this.sheet.listen(on);
  }

  /**
   * Show the sheet in place of the film; the forecast, which a choice on it changes, is then below it.
   * @param {boolean} on
   */
  compare(on) {
    this.element.classList.toggle("comparing", on);
    (on ? this.time : this.detail).after(this.next);
    this.sheet.listen(on);
  }

  /**
   * What the run came to, as far as it got. Without a run: what the squares are for.
   * @param {Run | null} run
   * @param {boolean} [isRecording] whether it is the film of a live session
   */
  sum(run, isRecording) {
    this.drift.draw(run?.events ?? [], this.squares.count);
    const entries = run
      ? [...tally(run.events), ...summaryOf(run, isRecording).map((line) => ({ text: line }))]
      : [];
    const shown = run ? entries.map(newEntry) : [make("span", "", text("empty"))];
    this.legend.replaceChildren(...shown);
  }

  /**
   * In the legend's place: the block that is looked at; undefined: the legend.
   * @param {BlockEvent | undefined} [event]
   * @param {Join} [join] at it, if it begins a shot
   */
  look(event, join) {
    this.side.classList.toggle("looking", Boolean(event));
    this.detail.textContent = event ? detailOf(event, join) : "";
  }

  /** @param {{ going: boolean, stopping: boolean }} state */
  offerStop({ going, stopping }) {
    this.button.hidden = !going;
    this.button.disabled = !going || stopping;
    this.button.textContent = stopping ? text("stopping") : text("stop");
  }
}

/** @param {{ text: string, colour?: string }} entry */
function newEntry({ text: line, colour }) {
  const element = make("span");
  if (colour) element.appendChild(make("i")).style.background = colour;
  element.append(line);
  return element;
}
