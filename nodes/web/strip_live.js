// A live session on a strip: what is typed and pressed, how far its film was shown, and what is said of it.
import { livePace } from "./live_pace.js";
import { LivePanel } from "./live_panel.js";
import { growth, promptProblem, secondsAhead } from "./live_text.js";
import { liveProblem } from "./live_start.js";
import { editionOf, isGoing, recordedSoFar } from "./runs.js";
import { text } from "./words.js";

const BETWEEN = 1000; // ms between two words on how far the film was shown
const STALLED = 700; // ms at the end of what is made, after which the film goes back
const REPLAYED = 4; // blocks that it goes back then
const PAGE = Math.random().toString(36).slice(2); // names this page to the server

/** @typedef {{ block: number, text: string }} Taken from which block it counts, and the prompt as it was taken */
/** @typedef {Taken & { how: "" | "cut" | "fresh" | "again" }} Sent */

export class LiveStrip {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
    this.known = ""; // the session that is shown
    this.seen = 0; // how many of its blocks this page has shown
    this.isSetBack = false; // the blocks behind them are made again, and none is here yet
    /** @type {number[]} */
    this.editions = []; // of its blocks
    /** @type {Sent | null} */
    this.sent = null;
    this.stalledAt = 0; // ms, since when the film is at the end of what is made
    this.isTicking = false;
    this.isQueued = false; // a session that has yet to begin
    this.isOurs = false; // it was begun here, and was not told yet how far the film was shown
    this.isOver = false; // the strip is no more
    /** @type {Promise<unknown>} */
    this.asking = Promise.resolve();
    this.panel = new LivePanel(strip.view, {
      start: () => this.start(),
      send: (how) => this.send(how),
      again: () => this.again(strip.view.named ?? 1),
      hold: () => this.act({ act: this.isHeld ? "resume" : "hold" }),
      end: () => void this.finish(),
      newest: () => this.run?.info.state?.words || (this.run?.events.at(-1)?.words ?? ""),
    });
    strip.view.element.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** The session that goes on; null: none does. */
  get run() {
    const { run } = this.strip;
    return run?.info.live && isGoing(run) ? run : null;
  }

  /** Whether somebody asked it to hold. */
  get isHeld() {
    const state = this.run?.info.state;
    return Boolean(state?.held && state.why === "asked");
  }

  // --- what it shows

  draw() {
    const { run } = this;
    if (run) this.follow(run);
    else this.known = "";
    this.panel.show(run && this.state(run), run ? "" : this.problem());
  }

  /**
   * Show a session as far as it is known. One that has begun already is shown from near its end.
   * @param {Run} run
   */
  follow(run) {
    const { player } = this.strip;
    const editions = run.events.map(editionOf);
    if (run.run !== this.known) {
      this.known = run.run;
      this.isOurs = this.isQueued;
      this.isQueued = false;
      this.strip.pair(null);
      this.strip.takes.close(false);
      this.sent = null;
      this.isSetBack = false;
      this.seen = Math.max(0, run.events.length - livePace().ahead);
      if (this.seen) player.goBehind(this.seen);
      this.panel.refuse("");
    } else {
      const at = this.editions.findIndex((edition, i) => edition !== editions[i]);
      if (at >= 0) this.setBack(at);
      if (at >= 0) this.report(run);
    }
    this.editions = editions;
    if (!this.strip.isOn) this.seen = run.events.length;
    if (!this.isTicking) this.tick();
  }

  /**
   * The blocks behind so many are made again: the film goes on with them.
   * @param {number} count
   */
  setBack(count) {
    const { player } = this.strip;
    this.sent = null;
    this.isSetBack = false;
    this.seen = Math.min(this.seen, count);
    if ((player.at?.[0] ?? 0) > count) player.goBehind(count);
  }

  /**
   * @param {Run} run
   * @returns {import("./live_panel.js").PanelState}
   */
  state(run) {
    const number = run.events.length ? (this.strip.view.named ?? 1) : 0;
    const { lines, note } = this.sentences(run);
    return { number, held: this.isHeld, ending: run.stopping, lines, note };
  }

  /** @param {Run} run */
  sentences(run) {
    const { state } = run.info;
    const ahead = secondsAhead(run, Math.min(this.seen, this.shown(run) ?? this.seen));
    const grows = growth(run);
    const lines = [];
    if (state?.held) lines.push(state.why === "asked" ? text("live.held") : text("live.unseen"));
    else if (!run.events.length) lines.push(text("live.begins"));
    else if (ahead !== null) lines.push(text("live.acts", { seconds: ahead.toFixed(1) }));
    if (grows && !state?.held)
      lines.push(text("live.grows", { speed: grows.toFixed(grows < 0.1 ? 2 : 1) }));
    if (state?.encoding) lines.push(text("live.encoded", { seconds: state.encoding.toFixed(1) }));
    return { lines, note: this.words(run) };
  }

  /**
   * The newest words: those that no block has yet, or those of the newest block.
   * @param {Run} run
   */
  words(run) {
    const { block = 0, text: words = "", how = "" } = this.sent ?? {};
    if (how === "again") return text("live.remade", { block });
    if (block > run.events.length) {
      const from = words ? text("live.from", { block, words }) : text("live.fromBlock", { block });
      const join = how === "cut" ? text("live.cutNow") : text("live.freshNow");
      return how ? join + text("comma") + from : from;
    }
    const newest = run.events.at(-1)?.words;
    return newest ? text("live.words", { words: newest }) : "";
  }

  // --- how far the film was shown

  /**
   * How many blocks the film has shown where it is now, which may be less than before; null: none is shown.
   * @param {Run} run
   */
  shown(run) {
    const { at } = this.strip.player;
    return at && at[0] - 1 + (at[1] + 1) / (run.events[at[0] - 1]?.sprite?.frames ?? 1);
  }

  /** The film is somewhere else now. */
  watch() {
    const { player } = this.strip;
    const { run } = this;
    const shown = run && this.shown(run);
    if (!run || player.held || shown === null) return;
    const isNext = !this.isSetBack && Math.floor(shown) > Math.floor(this.seen);
    if (!this.isSetBack) this.seen = Math.max(this.seen, shown);
    this.stalledAt = player.isAtEnd ? this.stalledAt || performance.now() : 0;
    this.panel.nameBlock(this.strip.view.named ?? player.at?.[0] ?? 1);
    if (isNext) this.report(run);
  }

  tick() {
    const { run } = this;
    this.isTicking = Boolean(run) && !this.isOver;
    if (!run || this.isOver) return;
    this.report(run);
    this.replay(run);
    const { lines, note } = this.sentences(run);
    this.panel.say(lines, note);
    setTimeout(() => this.tick(), BETWEEN);
  }

  /**
   * Tell the server where the film is, which paces the session; nothing where nobody sees it. Who began it says so once in any case, or
   * it would be made to its end if they looked elsewhere meanwhile.
   * @param {Run} run
   */
  async report(run) {
    const { isOn, player } = this.strip;
    if ((isOn ? !player.visible : document.hidden) && !this.isOurs) return;
    this.isOurs = false;
    const at = Math.round(this.seen * 100) / 100;
    const act = { act: "play", page: PAGE, at, ...livePace() };
    const answer = await this.strip.acts.steer(run, act).catch(() => ({}));
    if ("status" in answer && answer.status === 404) this.strip.acts.ask(); // it has ended
  }

  /**
   * Where the film has shown all that is made, it goes back: all the way if the session is held, else a few blocks.
   * @param {Run} run
   */
  replay(run) {
    const { player } = this.strip;
    if (!this.stalledAt || !player.playing || performance.now() - this.stalledAt < STALLED) return;
    const count = run.events.length;
    this.stalledAt = 0;
    player.goBehind(run.info.state?.held ? 0 : Math.max(0, count - REPLAYED));
  }

  // --- what is asked for

  /** Why no session can begin; empty if one can. */
  problem() {
    return this.isQueued ? text("live.queued") : liveProblem(this.strip.inputs);
  }

  /** Nothing is queued any more. */
  forgetQueued() {
    this.isQueued = false;
    this.draw();
  }

  /** Begin a session. */
  async start() {
    const { inputs, acts } = this.strip;
    if (this.problem()) return;
    this.isQueued = true;
    this.strip.view.complain("");
    this.draw();
    inputs.isBeginning = true;
    const isTaken = await acts.queue().catch(() => false);
    inputs.isBeginning = false;
    if (!isTaken) this.forgetQueued();
  }

  /**
   * Send what is typed.
   * @param {{ cut?: boolean, fresh?: boolean }} how
   */
  async send({ cut = false, fresh = false }) {
    const { box } = this.panel;
    const words = box.value.trim();
    if (!this.run) this.strip.view.complain(text("live.over"));
    if (!this.run || (!words && !cut && !fresh)) return;
    const problem = promptProblem(words);
    if (problem) {
      this.panel.refuse(text(`live.refused.${problem.key}`, problem.values));
      return;
    }
    const taken = await this.act({ act: "prompt", ...(words ? { text: words } : {}), cut, fresh });
    if (!taken) return;
    if (box.value.trim() === words) box.value = "";
    this.sent = { ...taken, how: cut ? "cut" : fresh ? "fresh" : "" };
    this.draw();
  }

  /**
   * Make a block and all after it again. The server hears at once that nobody has seen them.
   * @param {number} block
   */
  async again(block) {
    const { run } = this;
    const edition = this.editions[block - 1];
    const taken = run && (await this.act({ act: "again", block }));
    if (!run || !taken) return;
    if (this.editions[block - 1] !== edition) return; // it is here already
    this.isSetBack = true;
    this.sent = { ...taken, how: "again" };
    this.seen = Math.min(this.seen, block - 1);
    this.draw();
    this.report(run);
  }

  /** End the session after the block in the making. */
  async finish() {
    const { run } = this;
    if (!run) return;
    run.stopping = true;
    this.draw();
    if (await this.act({ act: "end" })) return;
    run.stopping = false;
    this.draw();
  }

  /** The strip is no more. */
  end() {
    this.isOver = true;
  }

  /**
   * Ask the session for something, after what was asked before; null if it refuses, which is then said.
   * @param {object} act
   * @returns {Promise<Taken | null>}
   */
  act(act) {
    const { run } = this;
    if (!run) return Promise.resolve(null);
    const answer = this.asking.then(() => this.strip.acts.steer(run, act));
    this.asking = answer.catch(() => {});
    return answer.then(
      (taken) => {
        this.panel.refuse("error" in taken ? taken.error : "");
        return "error" in taken ? null : taken;
      },
      (/** @type {Error} */ error) => {
        this.panel.refuse(error.message);
        return null;
      },
    );
  }

  /**
   * Its keys act anywhere on the strip but in a box. A square has done what its menu has already.
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    const { target, key, ctrlKey, metaKey, altKey } = event;
    if (!this.run || event.defaultPrevented || ctrlKey || metaKey || altKey) return;
    if (target instanceof Element && target.matches("input, textarea, select")) return;
    const item = this.items(this.strip.view.named ?? 1).find((other) => other.key === key);
    item?.act();
    if (item) event.preventDefault();
  }

  /**
   * What can be done at a block while a session goes on.
   * @param {number} number
   * @returns {MenuItem[]}
   */
  items(number) {
    const { run } = this;
    if (!run) return [];
    const isMade = number <= run.events.length;
    const again = { key: "a", text: text("live.again", { number }), act: () => this.again(number) };
    const { acts } = this.panel;
    const { recording } = this.strip;
    const soFar = recordedSoFar(run.events);
    return [
      ...(isMade ? [again] : []),
      { key: "c", text: text("live.cutNow"), act: () => acts.send({ cut: true }) },
      { key: "f", text: text("live.freshNow"), act: () => acts.send({ fresh: true }) },
      { key: "h", text: this.isHeld ? text("live.resume") : text("live.hold"), act: acts.hold },
      { key: "x", text: text("live.end"), act: acts.end },
      ...(soFar ? [{ text: text("live.asText"), act: () => recording.offer("", soFar) }] : []),
    ];
  }
}
