// The elements of one strip: squares, film, legend, and the button that stops the run. It knows nothing of nodes and servers.
import { FATES, ROUTER, fateOf } from "./blocks.js";
import { locale, make } from "./common.js";
import { Sheet } from "./strip_sheet.js";
import { SIDE } from "./strip_style.js";
import { words } from "./strip_words.js";

const MANY = 28; // more squares than this are drawn small, without numbers
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
const SCRUBS = { ArrowRight: 1, ArrowLeft: -1 };

export class StripView {
  /**
   * `acts`: `open(number)` the menu, `key(number, key)` which tells whether it took the key, `look(number or null, share)` at
   * a block, `choose(number)` it, `closeSheet()`, `enlargeSheet()`, `paint(canvas, event, frame)`, `enlarge(number)`, `play()`, `touch()` whenever somebody does something, `stop()`, and
   * `undo(number)` when a step is undone while a square has the focus, and `shots()` to open or close the cards of the shots.
   */
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-route");
    this.squares = this.element.appendChild(make("ol", "sdvg-squares", "", { "data-capture-wheel": true })); // in Nodes 2.0, once one has the focus
    const below = this.element.appendChild(make("div", "sdvg-below"));
    this.film = below.appendChild(make("canvas", "sdvg-film", "", { role: "img" }));
    this.side = below.appendChild(make("div", "sdvg-side"));
    this.legend = this.side.appendChild(make("div", "sdvg-legend", "", { role: "status" }));
    this.error = this.side.appendChild(make("div", "sdvg-error", "", { role: "alert" }));
    this.detail = this.side.appendChild(make("div", "sdvg-detail"));
    this.next = this.side.appendChild(make("div", "sdvg-next", "", { role: "status" }));
    this.sheet = new Sheet({ close: acts.closeSheet, enlarge: acts.enlargeSheet, paint: acts.paint });
    below.append(this.sheet.element);
    this.drift = this.element.appendChild(driftLine());
    this.controls = this.element.appendChild(make("div", "sdvg-controls"));
    this.player = this.controls.appendChild(push("sdvg-play", this.acts.play));
    this.time = this.controls.appendChild(make("span", "sdvg-time"));
    this.button = this.controls.appendChild(push("sdvg-stop", this.acts.stop));
    this.more = this.controls.appendChild(push("sdvg-more", () => this.acts.open(this.named, this.more)));
    this.more.setAttribute("aria-haspopup", "menu");
    this.shots = this.controls.appendChild(push("sdvg-shots-button", this.acts.shots));
    this.said = this.element.appendChild(make("div", "sdvg-said", "", { role: "status" }));
    this.listen();
  }

  listen() {
    const numberAt = ({ target }) => Number(target.closest?.("[data-number]")?.dataset.number) || null;
    const on = (name, act) => this.squares.addEventListener(name, (event) => numberAt(event) && act(numberAt(event), event));
    // Enter and the space bar click too, without a count of clicks.
    on("click", (number, { detail }) => (detail ? this.acts.choose(number) : this.acts.open(number, this.square(number))));
    on("dblclick", (number) => this.acts.enlarge(number));
    on("contextmenu", (number, event) => {
      event.preventDefault();
      event.stopPropagation(); // not ComfyUI's own
      this.acts.choose(number);
      this.acts.open(number, this.square(number));
    });
    on("keydown", (number, event) => this.onKey(number, event));
    on("pointermove", (number, event) => {
      this.acts.look(number, (event.offsetX + 1) / (this.count > MANY ? SIDE.many : this.thumbSide));
    });
    this.squares.addEventListener("pointerleave", () => this.acts.look(null));
    on("focusin", (number) => this.acts.choose(number));
    this.film.addEventListener("dblclick", () => this.acts.enlarge(this.at));
    for (const name of ["pointermove", "keydown"]) this.element.addEventListener(name, () => this.acts.touch());
  }

  onKey(number, event) {
    if (!number) return;
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
    const to = event.key in STEPS && Math.max(1, Math.min(number + STEPS[event.key], this.count));
    if (to) this.square(to).focus();
    const taken = to || this.acts.key(number, event.key);
    if (taken) event.preventDefault();
    if (taken || ["Enter", " "].includes(event.key)) event.stopPropagation(); // none of ComfyUI's shortcuts
  }

  get count() {
    return this.squares.children.length;
  }

  /** The square with the focus, by its number; null if none has it. */
  get focused() {
    return this.squares.contains(document.activeElement) ? Number(document.activeElement.dataset.number) : null;
  }

  square(number) {
    return this.squares.children[number - 1]?.firstChild;
  }

  thumb(number) {
    return this.square(number)?.querySelector("canvas");
  }

  /** Choose a square: it is reached with the Tab key, the others from there with the arrows. */
  rove(number) {
    this.at = Math.min(number, this.count);
    this.squares.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this.square(this.at)?.setAttribute("tabindex", "0");
    this.name(this.at);
  }

  /** Have the button below name a block: the one that was chosen or shown last. */
  name(number) {
    this.named = number;
    this.more.textContent = words().actions(number);
  }

  /** As wide as the frames of the video are, a square. */
  shape(aspect) {
    this.element.style.setProperty("--aspect", aspect);
    this.sheet.element.style.setProperty("--aspect", aspect); // in a dialog too
    this.thumbSide = Math.round(Math.max(SIDE.least, Math.min(31 * aspect, SIDE.most)));
    this.element.style.setProperty("--thumb", `${this.thumbSide}px`);
  }

  /** How the film stands: the block that is shown, and seconds. */
  tell({ playing, number, at, all }) {
    if (this.player.dataset.playing !== String(playing)) {
      this.player.dataset.playing = playing;
      this.player.textContent = playing ? "❚❚" : "▶";
      this.player.title = playing ? words().pause : words().play;
      this.player.setAttribute("aria-label", this.player.title);
    }
    this.player.hidden = !all;
    this.time.textContent = all ? words().time(at.toFixed(1), all.toFixed(1)) : "";
    if (number === this.shown) return;
    this.square(this.shown)?.classList.remove("at");
    this.square(number)?.classList.add("at");
    this.shown = number;
    if (number) this.name(number);
  }

  /** Offer the cards of so many shots; 0: the text cannot be shown as cards; null: there is no text. */
  offerShots(count) {
    this.shots.hidden = count === null;
    this.shots.disabled = count === 0;
    this.shots.textContent = words().shotsButton;
    this.shots.title = count === 0 ? words().noShots : words().shots;
  }

  openShots(on) {
    this.shots.setAttribute("aria-expanded", String(on));
  }

  /** Have `count` squares. */
  size(count) {
    if (count === this.count) return;
    const focused = this.focused;
    this.squares.setAttribute("aria-label", words().route);
    this.film.setAttribute("aria-label", words().film);
    this.squares.classList.toggle("many", count > MANY);
    this.squares.replaceChildren(...Array.from({ length: count }, (_, i) => square(i + 1)));
    this.rove(focused ?? 1);
    if (focused && count) this.square(Math.min(focused, count)).focus({ preventScroll: true });
  }

  /** A square as it is now: the block's event if it is made, and what is asked of the next run. */
  draw(number, of, event, { letter, take, again, may, old, usable, from, kept }) {
    const element = this.square(number);
    element.parentElement.dataset.from = words().second(from.toFixed(1));
    if (!event?.sprite) this.thumb(number).className = "blank";
    const fate = event && fateOf(event);
    Object.assign(element.style, { backgroundColor: fate?.colour ?? "", color: fate?.ink ?? "" });
    for (const [name, on] of [["made", event], ["earlier", event?.reused], ["again", again], ["may", may], ["old", old && event], ["kept", kept]]) element.classList.toggle(name, Boolean(on));
    state(element, "fate", event?.fate);
    state(element, "letter", letter === ROUTER ? undefined : letter);
    state(element, "take", take > 1 ? take : undefined);
    element.setAttribute("aria-disabled", String(!usable));
    const label = sentence(number, of, event, { letter, take, again, may, old, kept });
    if (element.title === label) return;
    if (number === this.saidOf) this.say(null); // it is so no more
    element.title = label;
    element.setAttribute("aria-label", label);
  }

  /** Say to a screen reader what a square says; null: nothing. */
  say(number) {
    this.saidOf = number;
    this.said.textContent = number ? this.square(number).title : "";
  }

  /** Show a comparison of two runs around the film, or no longer. */
  pair({ canvas, captions, row }, on) {
    const { parentElement: below } = this.film;
    this.film.before(canvas);
    below.append(...captions);
    below.after(row);
    this.element.classList.toggle("pairing", on);
    this.sheet.listen(on);
  }

  /** Show the sheet in place of the film; the forecast, which a choice on it changes, is then below it. */
  compare(on) {
    this.element.classList.toggle("comparing", on);
    (on ? this.time : this.detail).after(this.next);
    this.sheet.listen(on);
  }

  /** Bring a square into view. Not scrollIntoView, which would also scroll everything around the strip. */
  reveal(number) {
    const element = this.square(number);
    if (element) this.squares.scrollTop = element.offsetTop - this.squares.offsetTop - this.squares.clientHeight / 2;
  }

  /** What the run came to, as far as it got. Without a run: what the squares are for. */
  sum(log) {
    drawDrift(this.drift, log?.events ?? [], this.count);
    this.legend.replaceChildren(...(log ? tally(log) : [make("span", "", words().empty)]));
  }

  /** What the next run makes again. */
  foretell({ known, all, atMost, from, count, seconds }) {
    const blocks = all ? words().everything : words().blocks(from, from + count - 1);
    const made = atMost ? words().mayRemake(blocks) : words().remakes(blocks);
    const parts = [from === null ? words().none : made, ...(seconds ? [words().about(decimal(seconds))] : [])];
    this.next.textContent = known ? words().next(parts) : "";
    this.next.title = this.next.textContent;
    this.next.classList.toggle("nothing", from === null);
  }

  /** In the legend's place: the block that is looked at; undefined: the legend. */
  look(event) {
    this.side.classList.toggle("looking", Boolean(event));
    this.detail.textContent = event ? [words().block(event.number, event.of), verdict(event)].join(" · ") : "";
  }

  offer({ going, stopping }) {
    this.button.hidden = !going;
    this.button.disabled = !going || stopping;
    this.button.textContent = stopping ? words().stopping : words().stop;
  }
}

function square(number) {
  const item = make("li", "");
  const attributes = { type: "button", tabindex: -1, "data-number": number, "aria-haspopup": "menu", "aria-expanded": false };
  item.appendChild(make("button", "", "", attributes)).append(make("canvas", "blank"), String(number));
  return item;
}

function push(name, act) {
  const button = make("button", `sdvg-button ${name}`, "", { type: "button" });
  button.addEventListener("click", () => act());
  return button;
}

function state(element, name, value) {
  if (value === undefined) delete element.dataset[name];
  else element.dataset[name] = value;
}

function decimal(number) {
  return number.toFixed(number < 100 ? 1 : 0);
}

/** What was judged of a block. */
function verdict(event) {
  if (!Number.isFinite(event.score)) return words().unscored;
  const score = event.score.toFixed(2);
  const needs = Number.isFinite(event.threshold) ? event.threshold.toFixed(2) : "";
  const known = Number.isInteger(event.worst_frame) ? words().weakest(event.worst_frame + 1, score, needs) : words().score(score);
  return event.unscored ? words().partly(known, event.unscored) : known;
}

function sentence(number, of, event, { letter, take, again, may, old, kept }) {
  const parts = [words().block(number, of)];
  if (event) {
    if (event.fate !== "given") parts.push(fateOf(event)[locale()]);
    else if (!kept) parts.push(words().wasLocked);
    if (Number.isFinite(event.score)) parts.push(verdict(event));
    if (event.fate !== "given") parts.push(event.reused ? words().earlier : words().seconds(decimal(event.seconds)));
  }
  if (kept) parts.push(words().isLocked);
  if (words().directed[letter]) parts.push(words().directed[letter]);
  if (take > 1) parts.push(words().take(take));
  if (again) parts.push(event ? words().isAgain : words().isNew);
  if (may) parts.push(words().mayChange);
  if (old && event && !again && !may) parts.push(words().isOld);
  return parts.join(" · ");
}

/** How many blocks had each fate, how many are from an earlier run, the seconds, and how the run ended. */
function tally(log) {
  const count = (test) => log.events.filter(test).length;
  const known = Object.values(FATES);
  const others = log.events.map(fateOf).filter((fate) => !known.includes(fate));
  const entries = [...known, ...new Set(others)]
    .map((fate) => [fate, count((event) => fateOf(event) === fate)])
    .filter(([, blocks]) => blocks)
    .map(([fate, blocks]) => entry(words().count(blocks, fate[locale()]), fate.colour));
  const earlier = count((event) => event.reused && event.fate !== "given");
  const rest = [earlier && words().ofThese(earlier), words().seconds(decimal(log.seconds)), ...ending(log)];
  return [...entries, ...rest.filter(Boolean).map((text) => entry(text))];
}

function ending({ info, events, of, done, failed }) {
  return [
    done?.speed_up && speed(done.speed_up, events),
    done?.stopped && words().stopped(events.length, of),
    failed && words().ended(events.length, of),
    info.note, // of models that are swapped
  ];
}

/** How a run compares with the large model alone. */
function speed(times, events) {
  if (times >= 1) return words().faster(decimal(times));
  const count = (name) => events.filter(({ fate }) => fate === name).length;
  const remade = count("remade");
  return remade ? words().slower(remade, remade + count("kept")) : words().slow;
}

function entry(text, colour) {
  const element = make("span", "");
  if (colour) element.appendChild(make("i", "")).style.background = colour;
  element.append(text);
  return element;
}

// --- the drift of the colours, as a line below the film

const FULL = 0.3; // deviations that fill the height, unless a block drifts further; true clips stay within 0.1

function driftLine() {
  const element = make("div", "sdvg-drift", "", { role: "img" });
  element.innerHTML = '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><path vector-effect="non-scaling-stroke"/></svg>';
  element.append(make("span", ""));
  return element;
}

/** `of`: how many blocks there will be. What a scene is measured from has no drift and begins a new line, at 0; a given one has none. */
function drawDrift(element, events, of) {
  const known = events.filter(({ drift }) => Number.isFinite(drift));
  element.hidden = !known.length;
  if (!known.length) return;
  const most = known.reduce((one, other) => (other.drift > one.drift ? other : one));
  let [path, begun] = ["", false];
  for (const { number, drift } of events) {
    const at = `${(((number - 0.5) / of) * 100).toFixed(2)} ${(1 - drift / Math.max(FULL, most.drift)).toFixed(4)}h0`; // null counts as 0
    if (drift !== undefined) path += (begun && drift !== null ? "L" : "M") + at;
    begun = drift !== undefined;
  }
  element.querySelector("path").setAttribute("d", path);
  element.lastChild.textContent = words().drift(most.drift.toFixed(2), most.number);
  element.title = words().driftIs;
  element.setAttribute("aria-label", `${element.lastChild.textContent}. ${element.title}`);
}
