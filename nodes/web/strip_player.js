// Shows the finished blocks: the middle frame of each in its square, and all of them as a film, played or scrubbed.
import { RATE } from "./blocks.js";
import { bitmapOf, fetchSprite, framesIn, paintFrame, playable, players } from "./sprites.js";

const ROUNDS = 2; // of the whole film, after which it stops unless somebody does something with the strip
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

/** @typedef {[number, number]} Place a block, and a frame of it */

export class Player {
  /**
   * `canvas`: where the film is shown, within `frame`; `acts.changed`: called whenever the state of the film changes.
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} frame
   * @param {{ thumb: (number: number) => HTMLCanvasElement | undefined, going: () => boolean, live: () => boolean,
   *   changed: (state: FilmState) => void }} acts
   */
  constructor(canvas, frame, acts) {
    this.acts = acts;
    this.screens = [canvas];
    this.isOn = true;
    this.isSeen = false;
    this.waking = 0;
    /** @type {BlockEvent[]} */
    this.beside = []; // whose pictures a sheet shows
    /** @type {BlockEvent[]} */
    this.events = [];
    /** @type {string | null | undefined} */
    this.run = undefined;
    this.rate = RATE;
    /** @type {Place | null} */
    this.at = null; // where the film is
    /** @type {Place | null} */
    this.held = null; // the same, while somebody scrubs
    this.drawn = 0;
    this.rounds = 0;
    this.playing = false;
    this.fetches = new AbortController();
    /** @type {Set<number>} */
    this.asked = new Set();
    this.show(null, RATE, []);
    players.add(this);
    this.life = new AbortController();
    const { signal } = this.life;
    this.observer = new IntersectionObserver((entries) => {
      // It may have left the page and come back.
      this.isSeen = entries[entries.length - 1].isIntersecting;
      this.wake();
    });
    // Not the canvas itself, which is hidden until there is something to play.
    this.observer.observe(frame);
    document.addEventListener("visibilitychange", () => this.wake(), { signal });
    calm.addEventListener("change", () => calm.matches && this.stop(), { signal });
  }

  /**
   * Show the blocks of these events, which may become more.
   * @param {string | null} run
   * @param {number | undefined} rate
   * @param {BlockEvent[]} events
   */
  show(run, rate, events) {
    this.events = events;
    if (run === this.run) {
      this.wake();
      return;
    }
    this.forgetFetches();
    this.run = run;
    this.rate = rate || RATE;
    this.at = null;
    this.held = null;
    this.drawn = 0;
    this.rounds = 0;
    this.playing = !calm.matches || this.acts.live(); // which waits for what plays
    for (const screen of this.screens) {
      screen.classList.add("blank");
      screen.removeAttribute("data-shown");
    }
    this.tell();
    this.wake();
  }

  forgetFetches() {
    this.fetches.abort();
    this.fetches = new AbortController();
    this.asked.clear();
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

  /**
   * While somebody looks at a block: show the frame at `share` of it; null: its middle frame.
   * @param {number} number
   * @param {number | null} [share]
   */
  scrub(number, share = null) {
    const frames = this.ready(number)?.sprite?.frames;
    if (!frames) return;
    const wanted = share === null ? frames >> 1 : Math.floor(share * frames);
    this.hold(number, Math.max(0, Math.min(frames - 1, wanted)));
  }

  /**
   * One frame forwards or back, over the edges of blocks.
   * @param {number} by
   */
  step(by) {
    const reel = this.reel();
    const [number, frame] = this.held ?? this.at ?? [0, 0];
    const i = reel.findIndex((event) => event.number === number);
    if (i < 0) return;
    const isInside = frame + by >= 0 && frame + by < framesIn([reel[i]]);
    const next = isInside ? reel[i] : reel[i + by];
    if (!next) return;
    const edge = by > 0 ? 0 : framesIn([next]) - 1;
    this.hold(next.number, isInside ? frame + by : edge);
  }

  /**
   * @param {number} number
   * @param {number} frame
   */
  hold(number, frame) {
    const event = this.ready(number);
    if (!event) return;
    if (this.held && this.held[0] !== number) this.still(this.held[0]);
    this.held = [number, frame];
    this.draw(event, frame);
    const thumb = this.acts.thumb(number);
    if (thumb) paintFrame(thumb, event, frame);
  }

  /**
   * The film goes on from its frame at this place, counted from 0, if that is there.
   * @param {number} index
   */
  seek(index) {
    let rest = index;
    for (const event of this.events) {
      const frames = framesIn([event]);
      if (rest < frames) {
        this.hold(event.number, rest);
        this.release(true);
        return;
      }
      rest -= frames;
    }
  }

  /**
   * The film goes on behind this block; 0: from the beginning.
   * @param {number} number
   */
  goBehind(number) {
    const event = this.events[number - 1];
    this.at = event ? [number, framesIn([event]) - 1] : null;
    this.drawn = 0;
    this.wake();
  }

  /** Whether it has played all that is there. */
  get isAtEnd() {
    return Boolean(this.at) && !this.held && this.index >= this.frames - 1;
  }

  /** How many frames the film has. */
  get frames() {
    return framesIn(this.events);
  }

  /** The place of the frame that is shown, counted from 0. */
  get index() {
    const [number, frame] = this.held ?? this.at ?? [0, 0];
    return number ? framesIn(this.events.slice(0, number - 1)) + frame : -1;
  }

  /**
   * From here on the film goes on; with `stay` from the frame that is held.
   * @param {boolean} [stay]
   */
  release(stay = false) {
    if (!this.held) return;
    if (stay) this.at = this.held;
    const [number] = this.held;
    this.held = null;
    this.still(number);
    this.drawn = 0;
    this.rest();
    this.wake();
  }

  /** Draw where the film stands. */
  rest() {
    const event = this.at && this.ready(this.at[0]);
    if (event && this.at && !this.held)
      this.draw(event, Math.max(0, Math.min(this.at[1], framesIn([event]) - 1)));
  }

  /** @param {boolean} on */
  turn(on) {
    this.isOn = on;
    if (!on) this.forgetFetches();
    this.wake();
  }

  end() {
    players.delete(this);
    this.life.abort();
    this.fetches.abort();
    this.observer.disconnect();
    this.isOn = false;
  }

  get visible() {
    return this.isOn && this.isSeen && !document.hidden;
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
    const [first] = this.reel();
    if (!first) return;
    this.at = [first.number, this.playing ? -1 : framesIn([first]) >> 1];
    if (!this.playing) this.rest();
  }

  /** @param {BlockEvent} event */
  fetch(event) {
    if (bitmapOf(event)) this.still(event.number);
    if (bitmapOf(event) || this.asked.has(event.number)) return;
    this.asked.add(event.number);
    const { run } = this;
    const shown = () => {
      if (run !== this.run) return;
      this.asked.delete(event.number);
      this.still(event.number);
      this.wake();
    };
    fetchSprite(event, shown, this.fetches.signal);
  }

  /** The blocks that can be shown now. */
  reel() {
    return playable(this.events).filter(bitmapOf);
  }

  /** @param {number} number */
  ready(number) {
    const event = this.events[number - 1];
    return event?.sprite && bitmapOf(event) ? event : undefined;
  }

  /**
   * The middle frame of a block in its square.
   * @param {number} number
   */
  still(number) {
    const event = this.ready(number);
    const canvas = this.acts.thumb(number);
    if (event && canvas && this.held?.[0] !== number)
      paintFrame(canvas, event, framesIn([event]) >> 1);
  }

  /** @param {number} now */
  tick(now) {
    this.waking = 0;
    const reel = this.visible && this.playing && this.at && !this.held ? this.reel() : [];
    if (!reel.length) return;
    if (now - this.drawn >= 1000 / this.rate && !this.advance(reel, now)) return;
    this.waking = requestAnimationFrame((later) => this.tick(later));
  }

  /**
   * Show the next frame. False at the end: of what is made so far, or of the film.
   * @param {BlockEvent[]} reel
   * @param {number} now
   */
  advance(reel, now) {
    const step = 1000 / this.rate;
    const [number, before] = this.at ?? [0, -1];
    const known = reel.findIndex((event) => event.number === number);
    if (known < 0 && this.acts.live()) return false; // its picture is on the way, and wakes it
    let i = Math.max(0, known);
    let frame = before + 1;
    if (frame >= framesIn([reel[i]])) {
      i += 1;
      frame = 0;
    }
    if (i >= reel.length) {
      if (this.acts.going()) return false; // the next block wakes it
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

  /**
   * @param {BlockEvent} event
   * @param {number} frame
   */
  draw(event, frame) {
    for (const screen of this.screens) paintFrame(screen, event, frame);
    this.tell();
  }

  /** Say where the film is. */
  tell() {
    const [number] = this.held ?? this.at ?? [null];
    const at = (this.index + 1) / this.rate;
    this.acts.changed({ playing: this.playing, number, at, all: this.frames / this.rate });
  }
}
