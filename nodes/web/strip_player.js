// Shows the finished blocks: the middle frame of each in its square, and all of them as a film, played or scrubbed. Each has one JPEG
// with its frames side by side, decoded once and shown by any strip.
import { api } from "../../scripts/api.js";
import { RATE } from "./blocks.js";

const MOST = 100; // blocks, or as many as are on the screen; at 256 x 148 and 12 frames about 1.8 MB each
const AT_ONCE = 2;

const bitmaps = new Map(); // run and number -> the decoded picture, oldest first
const players = new Set();
const waiting = [];
let fetching = 0;

function keyOf({ run, number }) {
  return `${run}/${number}`;
}

export function bitmapOf(event) {
  return bitmaps.get(keyOf(event));
}

/** Those of a run's blocks that can be played: the newest that have a picture. */
export function playable(events) {
  return events.slice(-MOST).filter((event) => event.sprite);
}

/** Fetch the picture of a block and then call `shown`. If the signal aborts before its turn, it is not fetched. */
export function fetchSprite(event, shown, signal) {
  waiting.push({ event, shown, signal });
  next();
}

function next() {
  if (fetching >= AT_ONCE || !waiting.length) return;
  const { event, shown, signal } = waiting.shift();
  if (signal.aborted) {
    next();
    return;
  }
  fetching += 1;
  load(event, signal)
    .then(shown, (error) => signal.aborted || console.warn(`SDVG: the frames of block ${event.number} cannot be shown`, error))
    .finally(() => {
      fetching -= 1;
      next();
    });
  next();
}

async function load(event, signal) {
  if (bitmaps.has(keyOf(event))) return;
  const answer = await api.fetchApi(`/sdvg/frames/${event.run}/${event.number}`, { signal, cache: "default" });
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  bitmaps.set(keyOf(event), await createImageBitmap(await answer.blob()));
  const shown = new Set([...players].flatMap((player) => player.shown.map(keyOf)));
  for (const [key, bitmap] of bitmaps) {
    if (bitmaps.size <= MOST) break;
    if (shown.has(key)) continue;
    bitmaps.delete(key);
    bitmap.close();
  }
}

const ROUNDS = 2; // of the whole film, after which it stops unless somebody does something with the strip
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  /**
   * `canvas`: where the film is shown; `thumb(number)`: the canvas of a block's square; `going()`: whether the run goes on;
   * `told({ playing, number, at, all })`: called whenever one of these changes: the block that is shown, and seconds.
   */
  constructor(canvas, { thumb, going, told }) {
    Object.assign(this, { screens: [canvas], thumb, going, told });
    this.on = true;
    this.seen = false;
    this.waking = 0;
    this.beside = []; // events whose pictures a sheet shows
    this.show(null, RATE, []);
    players.add(this);
    this.life = new AbortController();
    this.observer = new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting; // it may have left the page and come back
      this.wake();
    });
    // Not the canvas itself, which is hidden until there is something to play.
    this.observer.observe(canvas.parentElement);
    document.addEventListener("visibilitychange", () => this.wake(), { signal: this.life.signal });
    calm.addEventListener("change", () => calm.matches && this.stop(), { signal: this.life.signal });
  }

  /** Show the blocks of these events, which may become more. */
  show(run, rate, events) {
    if (run === this.run) {
      this.events = events;
      this.wake();
      return;
    }
    this.fetches?.abort();
    this.fetches = new AbortController();
    this.asked = new Set();
    // `at`: the block and the frame of it that the film is at; `held`: the same, while somebody scrubs.
    Object.assign(this, { run, events, rate: rate || RATE, at: null, held: null, drawn: 0, rounds: 0, playing: !calm.matches });
    for (const screen of this.screens) {
      screen.classList.add("blank");
      screen.removeAttribute("data-shown");
    }
    this.tell();
    this.wake();
  }

  /** The mouse or the keyboard is on the strip. */
  touch() {
    this.rounds = 0;
  }

  toggle() {
    this.playing = !this.playing;
    this.rounds = 0;
    if (!this.playing) this.rest();
    this.tell();
    this.wake();
  }

  stop() {
    this.playing = false;
    this.rest();
    this.tell();
  }

  /** While somebody looks at a block: show the frame at `share` of it; null: its middle frame. */
  scrub(number, share = null) {
    const event = this.ready(number);
    if (!event) return;
    const { frames } = event.sprite;
    this.hold(number, share === null ? frames >> 1 : Math.max(0, Math.min(frames - 1, Math.floor(share * frames))));
  }

  /** One frame forwards or back, over the edges of blocks. */
  step(by) {
    const reel = this.reel();
    const [number, frame] = this.held ?? this.at ?? [];
    const i = reel.findIndex((event) => event.number === number);
    if (i < 0) return;
    const inside = frame + by >= 0 && frame + by < reel[i].sprite.frames;
    const next = inside ? reel[i] : reel[i + by];
    if (next) this.hold(next.number, inside ? frame + by : by > 0 ? 0 : next.sprite.frames - 1);
  }

  hold(number, frame) {
    if (this.held && this.held[0] !== number) this.still(this.held[0]);
    this.held = [number, frame];
    this.draw(this.ready(number), frame);
    this.paint(this.thumb(number), this.ready(number), frame);
  }

  /** The film goes on from its frame at this place, counted from 0, if that is there. */
  seek(index) {
    let rest = index;
    const event = this.events.find(({ sprite }) => {
      const inside = rest < (sprite?.frames ?? 0);
      if (!inside) rest -= sprite?.frames ?? 0;
      return inside;
    });
    if (!event || !this.ready(event.number)) return;
    this.hold(event.number, rest);
    this.release(true);
  }

  /** How many frames the film has. */
  get frames() {
    return framesOf(this.events);
  }

  /** The place of the frame that is shown, counted from 0. */
  get index() {
    const [number, frame] = this.held ?? this.at ?? [null, 0];
    return number ? framesOf(this.events.slice(0, number - 1)) + frame : -1;
  }

  /** From here on the film goes on; with `stay` from the frame that is held. */
  release(stay = false) {
    if (!this.held) return;
    if (stay) this.at = this.held;
    this.still(this.held[0]);
    this.held = null;
    this.drawn = 0;
    this.rest();
    this.wake();
  }

  /** Draw where the film stands. */
  rest() {
    const [number, frame] = this.at ?? [];
    const event = this.ready(number);
    if (event && !this.held) this.draw(event, Math.min(frame, event.sprite.frames - 1));
  }

  turn(on) {
    this.on = on;
    if (!on) {
      this.fetches.abort();
      this.fetches = new AbortController();
      this.asked.clear();
    }
    this.wake();
  }

  end() {
    players.delete(this);
    this.life.abort();
    this.fetches.abort();
    this.observer.disconnect();
    this.on = false;
  }

  get visible() {
    return this.on && this.seen && !document.hidden;
  }

  /** The events whose pictures are on the screen. */
  get shown() {
    return this.visible ? [...playable(this.events), ...this.beside] : [];
  }

  /** Fetch what is missing, and go on playing if there is something to play and somebody to see it. */
  wake() {
    if (!this.visible) return;
    for (const event of playable(this.events)) this.fetch(event);
    if (!this.at) this.begin();
    if (this.playing) this.waking ||= requestAnimationFrame((now) => this.tick(now));
  }

  /** The first picture that is shown of a film. */
  begin() {
    const first = this.reel()[0];
    if (!first) return;
    this.at = [first.number, this.playing ? -1 : first.sprite.frames >> 1];
    if (!this.playing) this.rest();
  }

  fetch(event) {
    if (bitmapOf(event)) return this.still(event.number);
    if (this.asked.has(event.number)) return undefined;
    this.asked.add(event.number);
    const { run } = this;
    const shown = () => {
      if (run !== this.run) return;
      this.asked.delete(event.number);
      this.still(event.number);
      this.wake();
    };
    return fetchSprite(event, shown, this.fetches.signal);
  }

  /** The blocks that can be shown now. */
  reel() {
    return playable(this.events).filter(bitmapOf);
  }

  ready(number) {
    const event = this.events[number - 1];
    return event?.sprite && bitmapOf(event) ? event : undefined;
  }

  /** The middle frame of a block in its square. */
  still(number) {
    const [event, canvas] = [this.ready(number), this.thumb(number)];
    if (event && canvas && this.held?.[0] !== number) this.paint(canvas, event, event.sprite.frames >> 1);
  }

  tick(now) {
    this.waking = 0;
    const reel = this.visible && this.playing && this.at && !this.held ? this.reel() : [];
    if (!reel.length) return;
    if (now - this.drawn >= 1000 / this.rate && !this.advance(reel, now)) return;
    this.waking = requestAnimationFrame((later) => this.tick(later));
  }

  /** Show the next frame. False at the end: of what is made so far, or of the film. */
  advance(reel, now) {
    const step = 1000 / this.rate;
    let i = Math.max(0, reel.findIndex((event) => event.number === this.at[0]));
    let frame = this.at[1] + 1;
    if (frame >= reel[i].sprite.frames) [i, frame] = [i + 1, 0];
    if (i >= reel.length) {
      if (this.going()) return false; // the next block wakes it
      this.rounds += 1;
      if (this.rounds >= ROUNDS) {
        this.stop();
        return false;
      }
      i = 0;
    }
    this.drawn = Math.max(this.drawn + step, now - step);
    this.at = [reel[i].number, frame];
    this.draw(reel[i], frame);
    return true;
  }

  draw(event, frame) {
    for (const screen of this.screens) this.paint(screen, event, frame);
    this.tell();
  }

  paint(canvas, event, frame) {
    const { width, height } = event.sprite;
    const shown = `${event.run}/${event.number}:${frame + 1}`;
    if (canvas.dataset.painted === shown) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    canvas.getContext("2d").drawImage(bitmapOf(event), frame * width, 0, width, height, 0, 0, width, height);
    canvas.classList.remove("blank");
    Object.assign(canvas.dataset, { painted: shown, shown: `${event.number}:${frame + 1}` });
  }

  /** Say where the film is. */
  tell() {
    const [number] = this.held ?? this.at ?? [null];
    this.told({ playing: this.playing, number, at: (this.index + 1) / this.rate, all: this.frames / this.rate });
  }
}

function framesOf(events) {
  return events.reduce((sum, event) => sum + (event.sprite?.frames ?? 0), 0);
}
