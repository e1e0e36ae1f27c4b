// Plays the finished blocks on a small canvas, at the video's rate: all of them, or one alone.
import { bitmapOf, fetchSprite, playable } from "./sprites.js";

const RATE = 16;
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.on = true;
    this.seen = false;
    this.alone = null;
    this.waking = 0;
    this.show(null, RATE, []);
    this.life = new AbortController();
    this.observer = new IntersectionObserver(([{ isIntersecting }]) => {
      this.seen = isIntersecting;
      this.wake();
    });
    // Not the canvas itself, which is hidden until there is something to play.
    this.observer.observe(canvas.parentElement);
    const again = () => this.wake();
    document.addEventListener("visibilitychange", again, { signal: this.life.signal });
    calm.addEventListener("change", again, { signal: this.life.signal });
  }

  /** Play the blocks of these events, which may become more. */
  show(run, rate, events) {
    if (run === this.run) {
      this.events = events;
      this.wake();
      return;
    }
    this.fetches?.abort();
    this.fetches = new AbortController();
    this.asked = new Set();
    Object.assign(this, { run, events, rate: rate || RATE, at: [0, 0], drawn: 0 });
    this.canvas.classList.add("blank");
    this.canvas.removeAttribute("data-shown");
    this.wake();
  }

  /** Play one block in a loop, by its number; null: all of them. */
  only(number) {
    if (number === this.alone) return;
    this.alone = number;
    this.at = [0, -1];
    this.drawn = 0;
    this.wake();
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
    this.life.abort();
    this.fetches.abort();
    this.observer.disconnect();
    this.on = false;
  }

  get visible() {
    return this.on && this.seen && !document.hidden;
  }

  /** Fetch what is missing, and go on playing if there is something to play and somebody to see it. */
  wake() {
    if (!this.visible) return;
    for (const event of playable(this.events)) this.fetch(event);
    if (calm.matches) this.stand();
    else this.waking ||= requestAnimationFrame((now) => this.tick(now));
  }

  fetch(event) {
    if (this.asked.has(event.number)) return;
    this.asked.add(event.number);
    const { run } = this;
    fetchSprite(event, () => run === this.run && this.wake(), this.fetches.signal);
  }

  /** The blocks that take part now. */
  reel() {
    const ready = playable(this.events).filter(bitmapOf);
    const one = ready.filter((event) => event.number === this.alone);
    return one.length ? one : ready;
  }

  tick(now) {
    this.waking = 0;
    const reel = this.visible && !calm.matches ? this.reel() : [];
    if (!reel.length) return;
    this.waking = requestAnimationFrame((later) => this.tick(later));
    const step = 1000 / this.rate;
    if (now - this.drawn < step) return;
    this.drawn = Math.max(this.drawn + step, now - step);
    let [block, frame] = [this.at[0], this.at[1] + 1];
    if (block >= reel.length) [block, frame] = [0, 0];
    if (frame >= reel[block].sprite.frames) [block, frame] = [(block + 1) % reel.length, 0];
    this.at = [block, frame];
    this.draw(reel[block], frame);
  }

  /** For those who want no motion: the last frame. */
  stand() {
    const last = this.reel().at(-1);
    if (last) this.draw(last, last.sprite.frames - 1);
  }

  draw(event, frame) {
    const { width, height } = event.sprite;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    this.context.drawImage(bitmapOf(event), frame * width, 0, width, height, 0, 0, width, height);
    this.canvas.classList.remove("blank");
    this.canvas.dataset.shown = `${event.number}:${frame + 1}`;
  }
}
