// Two runs as films side by side: the one that is shown, and another one of the same node. They share the time line and the player.
import { make, makeButton, nameElement } from "./dom.js";
import { differsFrom } from "./runs.js";
import { bitmapOf, fetchSprite, framesIn, paintFrame, playable } from "./sprites.js";
import { outcomeText, text } from "./words.js";

export class Comparison {
  /**
   * @param {import("./strip_player.js").Player} player of the run that is shown
   * @param {{ close: () => void, enlarge: () => void, choose: (run: string) => void }} acts
   */
  constructor(player, acts) {
    this.player = player;
    this.acts = acts;
    /** @type {Run | null} */
    this.other = null;
    this.canvas = make("canvas", "sdvg-before blank", "", { role: "img" });
    this.captions = [make("span", "sdvg-caption"), make("span", "sdvg-caption")]; // before, now
    this.row = make("div", "sdvg-compare");
    this.line = make("input", "", "", { type: "range", min: 0, step: 1 });
    this.runs = make("select", "sdvg-button");
    this.large = makeButton("sdvg-button", "⤢", () => acts.enlarge());
    this.back = makeButton("sdvg-button", "✕", () => acts.close());
    this.row.append(this.line, this.runs, this.large, this.back);
    this.line.addEventListener("input", () => player.seek(Number(this.line.value)));
    this.runs.addEventListener("change", () => acts.choose(this.runs.value));
    this.row.addEventListener("keydown", (event) => this.onKey(event));
    this.screens = [this.canvas];
    /** @type {HTMLElement[]} */
    this.enlarged = []; // captions in a dialog
    this.labels = "";
    this.fetches = new AbortController();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key === "Escape") this.acts.close();
  }

  /**
   * Show `now` beside `other`, which is among the `others`, newest last; without them it is over.
   * @param {Run | null} now
   * @param {Run | null} other
   * @param {Run[]} [others]
   */
  show(now, other, others = []) {
    if (other !== this.other) this.begin(other);
    if (!other || !now) return;
    nameElement(this.line, text("timeLine"));
    nameElement(this.runs, text("runs"));
    nameElement(this.large, text("enlarge"));
    nameElement(this.back, text("close"));
    const labels = others.map((run, i) => [
      run.run,
      nameOf(others.length - i, differsFrom(run, now)),
    ]);
    if (JSON.stringify(labels) !== this.labels) {
      this.labels = JSON.stringify(labels);
      const options = labels.map(([value, label]) => make("option", "", label, { value }));
      this.runs.replaceChildren(...options.reverse());
    }
    this.runs.value = other.run;
    this.tell();
  }

  /**
   * Show the other run on a `canvas` as well, with `captions` for both; null: no longer.
   * @param {HTMLCanvasElement | null} canvas
   * @param {HTMLElement[]} captions
   */
  enlarge(canvas, captions) {
    this.screens.length = 1;
    if (canvas) this.screens.push(canvas);
    this.enlarged = captions;
    this.tell();
  }

  /** @param {Run | null} other */
  begin(other) {
    this.fetches.abort();
    this.fetches = new AbortController();
    this.other = other;
    this.player.beside = other ? playable(other.events) : [];
    for (const event of this.player.beside)
      fetchSprite(event, () => this.tell(), this.fetches.signal);
  }

  /** Show of the other run what stands at the place where the film is. */
  tell() {
    if (!this.other) return;
    const [number, frame] = this.player.held ?? this.player.at ?? [0, 0];
    const before = this.other.events[number - 1];
    const now = this.player.events[number - 1];
    for (const screen of this.screens) {
      const last = before ? framesIn([before]) - 1 : 0;
      if (before && bitmapOf(before))
        paintFrame(screen, before, Math.max(0, Math.min(frame, last)));
      else screen.classList.add("blank");
    }
    this.caption(0, text("before", { outcome: nameOfOutcome(before) }));
    this.caption(1, text("now", { outcome: nameOfOutcome(now) }));
    this.canvas.setAttribute("aria-label", this.captions[0].textContent ?? "");
    this.line.max = String(Math.max(0, this.player.frames - 1));
    this.line.value = String(this.player.index);
  }

  /**
   * @param {number} i
   * @param {string} title
   */
  caption(i, title) {
    for (const caption of [this.captions[i], this.enlarged[i]]) {
      if (!caption || caption.textContent === title) continue;
      caption.textContent = title;
      caption.title = title;
    }
  }
}

/** @param {BlockEvent | undefined} event */
function nameOfOutcome(event) {
  return event ? outcomeText(event) : text("notMade");
}

/**
 * What a run is called among the others: how far back it is, and from which block on it differs.
 * @param {number} count
 * @param {number | undefined} number
 */
function nameOf(count, number) {
  const run = text("runBack", { count });
  return number ? text("runDiffers", { run, number }) : run;
}
