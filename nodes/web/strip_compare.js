// Two runs as films side by side: the one that is shown, and another one of the same node. They share the time line and the player.
import { fateOf } from "./blocks.js";
import { locale, make } from "./common.js";
import { bitmapOf, fetchSprite, playable } from "./strip_player.js";
import { words } from "./strip_words.js";

export class Comparison {
  /** `player`: of the run that is shown; `acts`: `close()`, `enlarge()`, `choose(run)` the other run, `paint(canvas, event, frame)`. */
  constructor(player, acts) {
    Object.assign(this, { player, acts, other: null });
    this.canvas = make("canvas", "sdvg-before blank", "", { role: "img" });
    this.captions = [make("span", "sdvg-caption"), make("span", "sdvg-caption")]; // before, now
    this.row = make("div", "sdvg-compare");
    this.line = this.row.appendChild(make("input", "", "", { type: "range", min: 0, step: 1 }));
    this.runs = this.row.appendChild(make("select", "sdvg-button"));
    this.large = this.row.appendChild(make("button", "sdvg-button", "⤢", { type: "button" }));
    this.back = this.row.appendChild(make("button", "sdvg-button", "✕", { type: "button" }));
    this.line.addEventListener("input", () => player.seek(Number(this.line.value)));
    this.runs.addEventListener("change", () => acts.choose(this.runs.value));
    this.large.addEventListener("click", () => acts.enlarge());
    this.back.addEventListener("click", () => acts.close());
    this.row.addEventListener("keydown", (event) => this.onKey(event));
    this.screens = [this.canvas];
    this.enlarged = []; // captions in a dialog
    this.fetches = new AbortController();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key === "Escape") this.acts.close();
  }

  /** Show `now` beside `other`, one of the `others`, newest last; without them it is over. */
  show(now, other, others = []) {
    if (other !== this.other) this.begin(other);
    if (!other) return;
    const names = [[this.line, words().timeLine], [this.runs, words().runs], [this.large, words().enlarge], [this.back, words().close]];
    for (const [element, name] of names) Object.assign(element, { title: name, ariaLabel: name });
    const labels = others.map((one, i) => [one.run, words().runBack(others.length - i, differsFrom(one, now))]);
    if (JSON.stringify(labels) !== this.labels) {
      this.labels = JSON.stringify(labels);
      this.runs.replaceChildren(...labels.reverse().map(([value, text]) => make("option", "", text, { value })));
    }
    this.runs.value = other.run;
    this.tell();
  }

  /** Show the other run on a `canvas` as well, with `captions` for both; null: no longer. */
  enlarge(canvas, captions) {
    this.screens.length = 1;
    if (canvas) this.screens.push(canvas);
    this.enlarged = captions;
    this.tell();
  }

  begin(other) {
    this.fetches.abort();
    this.fetches = new AbortController();
    this.other = other;
    this.player.beside = other ? playable(other.events) : [];
    for (const event of this.player.beside) fetchSprite(event, () => this.tell(), this.fetches.signal);
  }

  /** Show of the other run what stands at the place where the film is. */
  tell() {
    if (!this.other) return;
    const [number, frame] = this.player.held ?? this.player.at ?? [];
    const [event, now] = [this.other, this.player].map(({ events }) => events[number - 1]);
    for (const screen of this.screens) {
      if (event?.sprite && bitmapOf(event)) this.acts.paint(screen, event, Math.max(0, Math.min(frame, event.sprite.frames - 1)));
      else screen.classList.add("blank");
    }
    const fate = (one) => (one ? fateOf(one)[locale()] : undefined);
    [words().before(fate(event)), words().after(fate(now))].forEach((text, i) => {
      for (const caption of [this.captions[i], this.enlarged[i]]) if (caption && caption.textContent !== text) Object.assign(caption, { textContent: text, title: text });
    });
    this.canvas.setAttribute("aria-label", this.captions[0].textContent);
    this.line.max = Math.max(0, this.player.frames - 1);
    this.line.value = this.player.index;
  }
}

/** The first block in which two runs differ; undefined if that is not known, or if they do not. */
function differsFrom(one, other) {
  const [before, now] = [one.done?.digests, other.done?.digests];
  if (!before || !now) return undefined;
  const at = now.findIndex((digest, i) => digest !== before[i]);
  return at < 0 ? undefined : at + 1;
}
