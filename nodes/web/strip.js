// The strip of one sampler: shows a run, and writes on the node's widgets what the next one is to do.
import { secondOf } from "./blocks.js";
import { carriedLocks, lockedIn, locksOf } from "./locks.js";
import { NodeInputs } from "./node_inputs.js";
import { hasFailed, isGoing } from "./runs.js";
import { writeBoard } from "./shots.js";
import { StripActions } from "./strip_actions.js";
import { Board } from "./strip_board.js";
import { Comparison } from "./strip_compare.js";
import { openLarge, openSheet } from "./strip_dialog.js";
import { LiveStrip } from "./strip_live.js";
import {
  bringsBack,
  clipBlocks,
  drawnForecast,
  isOld,
  joinAt,
  livesIn,
  squaresOf,
} from "./strip_model.js";
import { Player } from "./strip_player.js";
import { StripRecording } from "./strip_recording.js";
import { madeText, refusalText } from "./strip_sentences.js";
import { StripRoom } from "./strip_room.js";
import { paintFrame } from "./sprites.js";
import { TauLine } from "./strip_tau.js";
import { TakeSheet } from "./strip_takes.js";
import { StripView } from "./strip_view.js";
import { text } from "./words.js";

/**
 * What a strip asks of the server and of the other strips.
 * @typedef {object} StripActs
 * @property {(run: Run) => void} stop
 * @property {(lock: string, blocks: string, silent: boolean) => Promise<boolean>} keep write the blocks of a lock, as they are named, to the disk
 * @property {(number: number) => void} undo when a step is undone from a square
 * @property {() => Run[]} others runs that made takes to compare, and others that are over
 * @property {() => void} ask for a forecast
 * @property {() => Promise<void>} askStatus whether the server has nothing to do: then all has ended
 * @property {() => Promise<boolean>} queue the workflow; whether the server took it
 * @property {(run: Run, act: object) => Promise<Steered>} steer a live session
 * @property {() => Signature | undefined} signature of what is set, as the server says
 */

export class Strip {
  /**
   * @param {GraphNode} node
   * @param {StripActs} acts
   */
  constructor(node, acts) {
    this.node = node;
    this.acts = acts;
    /** @type {Run | null} */
    this.run = null;
    /** @type {Run | null} */
    this.other = null; // the run that is shown beside it
    /** @type {{ key: string, runs: Record<string, Forecast>, known: string[], refusal: string, over: string } | null} */
    this.answer = null; // of the server to what was asked then: forecasts by run, the runs that it has, why it would refuse
    /** @type {number | null} */
    this.tau = null; // that is tried while its line moves
    this.isOn = true;
    this.isWriting = false;
    this.shown = "";
    this.inputs = new NodeInputs(
      node,
      () => this.run,
      () => this.refresh(),
    );
    this.actions = new StripActions(this);
    this.view = new StripView(this.viewActs());
    this.room = new StripRoom(node, this.view.element);
    this.takes = new TakeSheet(this);
    this.board = new Board(boardActs(this));
    this.gate = new TauLine({
      preview: (tau) => this.tryTau(tau),
      set: (tau) => {
        this.inputs.writeTau(tau);
        this.refresh();
      },
    });
    this.view.element.prepend(this.gate.element);
    this.view.element.append(this.board.element);
    this.player = new Player(this.view.film, this.view.below, {
      thumb: (number) => this.view.squares.thumb(number),
      going: () => Boolean(this.run && isGoing(this.run)),
      live: () => livesIn(this.run),
      changed: (state) => {
        this.view.showFilm(state);
        this.comparison?.tell();
        this.live?.watch();
      },
    });
    /** @type {LiveStrip | undefined} */
    this.live = new LiveStrip(this);
    this.recording = new StripRecording(this);
    /** @type {Comparison | undefined} */
    this.comparison = new Comparison(this.player, {
      close: () => this.pair(null),
      enlarge: () => this.enlarge(this.view.squares.at),
      choose: (run) => this.pair(run),
    });
    this.view.openShots(false);
    this.show(null);
  }

  /** @returns {import("./strip_view.js").ViewActs} */
  viewActs() {
    return {
      open: (number, anchor) => this.actions.open(number, anchor),
      key: (number, key) => this.actions.onKey(number, key),
      look: (number, share) => this.look(number, share),
      picture: (number) => this.player.still(number),
      choose: (number) => this.choose(number),
      enlarge: (number) => this.enlarge(number),
      step: (by) => this.player.step(by),
      play: () => this.player.toggle(),
      touch: () => this.player.touch(),
      closeSheet: () => (this.other ? this.pair(null) : this.takes.close()),
      enlargeSheet: () => this.enlarge(this.view.squares.at),
      paint: paintFrame,
      stop: () => this.actions.stop(),
      undo: (number) => this.acts.undo(number),
      shots: () => this.openShots(!this.room.isOpen.shots),
    };
  }

  /** Why the next run will be refused; empty if it will not, and where neither a run nor a lock promises one. */
  get refusal() {
    const inputs = this.inputs.now();
    if (!this.run && !lockedIn(inputs).length) return "";
    return refusalText(inputs, this.answer?.key === this.key ? this.answer.refusal : "");
  }

  /** What the server says of the next run; null if it has not, since what is asked has changed, or if it will be refused. */
  get forecast() {
    if (!this.run || isGoing(this.run) || this.answer?.key !== this.key || this.refusal)
      return null;
    const forecast = this.answer.runs[this.run.run] ?? null;
    if (forecast && this.recording?.isShown) return { ...forecast, old: [] }; // nothing was changed since
    return forecast && this.inputs.isDrawn ? drawnForecast(forecast) : forecast;
  }

  /** Whether the server no longer has the run that is shown. */
  get isForgotten() {
    const { answer, run } = this;
    return Boolean(run?.done && answer?.over === run.run && !answer.known.includes(run.run));
  }

  /** What is asked of the next run, as one text. */
  get key() {
    return JSON.stringify([this.inputs.key, this.tau, this.board.draft]);
  }

  // --- what it shows

  /**
   * Show a run as far as it is known; null: none.
   * @param {Run | null} run
   */
  show(run) {
    if (run?.run !== this.run?.run) this.view.look();
    this.run = run;
    this.player.show(run?.run ?? null, run?.info.fps, run?.events ?? []);
    this.refresh();
    if (run?.events.length) this.view.squares.reveal(run.events.length);
  }

  /** Show the newest block of the run that is shown. */
  grow() {
    if (livesIn(this.run)) this.refresh(); // it has another square too
    const count = this.run?.events.length ?? 0;
    const square = squaresOf(this.inputs.now(), this.run, null)[count - 1];
    if (square) this.view.squares.draw(square);
    this.view.sum(this.run, this.recording?.isFilm);
    this.view.squares.reveal(count);
    this.drawSheet();
    if (this.room.isOpen.shots) this.drawShots();
    if (this.room.isOpen.tau) this.drawTau();
    this.player.wake();
  }

  /** Show how the run stands, and what the widgets say. */
  refresh() {
    if (this.isWriting) return; // it is refreshed once all is written
    const inputs = this.inputs.now();
    this.shown = this.inputs.key;
    this.room.fitLine();
    this.view.shape(inputs.aspect);
    this.view.draw(squaresOf(inputs, this.run, this.forecast));
    const isOther = bringsBack(this.forecast, this.run, this.acts.signature());
    const state = { hasRun: this.run !== null, isForgotten: this.isForgotten, bringsBack: isOther };
    const going = this.acts.others().some(isGoing) || Boolean(this.run && isGoing(this.run));
    this.view.showNext(inputs, going ? null : this.forecast, state, this.refusal);
    this.inputs.nameLength(lengthText(inputs));
    this.view.sum(this.run, this.recording?.isFilm);
    this.drawParts();
    this.view.offerStop({ going, stopping: Boolean(this.run?.stopping) });
    this.live?.draw();
  }

  drawParts() {
    this.drawSheet();
    this.drawShots();
    this.drawTau();
  }

  /** Show what the widgets say, if that has changed. */
  sync() {
    if (this.inputs.key !== this.shown) this.refresh();
    else this.live?.draw(); // which depends on wires too
  }

  /**
   * Take in what the server says of the next run beside each run that it knows; null: nothing. It is shown by a refresh.
   * @param {string} key what was asked
   * @param {Record<string, Forecast> | null} runs
   * @param {string[]} [known] the runs that it has
   * @param {string} [refusal] why it would refuse the next run
   * @param {string} [over] the run that was shown, and over, as it was asked
   */
  tell(key, runs, known = [], refusal = "", over = "") {
    if (key !== this.key) return; // it is late
    this.answer = runs && { key, runs, known, refusal, over };
    if (this.tau !== null) this.gate.say(madeText(this.forecast));
  }

  // --- takes, and two runs, side by side

  /** After something on the strip was closed, the chosen square has the focus, unless it is elsewhere on the page. */
  focusSquare() {
    const active = document.activeElement;
    if (active !== document.body && !this.view.element.contains(active)) return;
    this.view.squares.square(this.view.squares.at)?.focus({ preventScroll: true });
  }

  /**
   * Show another run, by its name, beside the one of the strip; null: the film alone.
   * @param {string | null} run
   */
  pair(run) {
    const wasPaired = this.other !== null;
    if (run) this.takes.close(false);
    this.other = this.before().find((other) => other.run === run) ?? null;
    if (!this.other && !wasPaired) return;
    this.drawPair();
    if (!this.other) this.focusSquare();
  }

  drawPair() {
    const runs = this.before();
    if (this.other && !runs.includes(this.other)) this.other = null; // it is forgotten, or shown
    this.comparison?.show(this.run, this.other, runs);
    if (this.comparison) this.view.pair(this.comparison, Boolean(this.other));
  }

  /** The other whole runs of this sampler that are remembered, oldest first. */
  before() {
    /** @param {Run} run */
    const isWhole = (run) => !run.info.until && !hasFailed(run) && run.events.length > 0;
    return this.acts.others().filter((run) => this.run && run.run !== this.run.run && isWhole(run));
  }

  drawSheet() {
    if (this.other) this.drawPair();
    if (this.other) return;
    this.player.beside = this.takes.draw();
  }

  // --- shots

  /** Show the shots, if the prompt's text is at hand; with more than one, unless somebody closed them. */
  drawShots() {
    const inputs = this.inputs.now();
    const before = clipBlocks(inputs.start, this.run);
    const isTooEarly = before === null;
    const values = this.inputs.boardValues();
    this.board.show({
      values: isTooEarly ? undefined : values,
      before: before ?? 0,
      locks: locksOf(inputs),
      most: this.inputs.mostBlocks,
      run: this.isOn ? this.run : null,
      signature: this.acts.signature(),
      isKnown: this.answer?.key === this.key && this.board.draft === null,
      forecast: this.forecast,
      start: inputs.start,
    });
    const problem = isTooEarly ? text("clipFirst") : text("noShots");
    this.view.offerShots(values ? this.board.count : null, problem);
    this.openShots();
  }

  /**
   * Open or close the cards, where `on` says so; returns whether they are open.
   * @param {boolean} [on]
   */
  openShots(on) {
    const open = this.room.fitCards(this.board.count, on);
    this.view.openShots(open);
    return open;
  }

  /**
   * Write a board on the widgets, as one step that can be undone.
   * @param {ShotBoard} board
   */
  writeShots(board) {
    if (this.room.isOpen.shots) this.openShots(true); // also where one shot is left
    const lock = carriedLocks(this.inputs.now().lock, this.board.board, board);
    this.isWriting = true;
    try {
      this.inputs.writeBoard({ ...writeBoard(board), kept_blocks: lock });
    } finally {
      this.isWriting = false;
      this.refresh();
    }
  }

  // --- tau

  drawTau() {
    const source = this.inputs.tauSource();
    this.room.open("tau", Boolean(source));
    if (!source) return;
    const { min = -3, max = 3 } = source.widget.options;
    const count = this.view.squares.count;
    const tau = Number(source.widget.value);
    this.gate.show({ tau, min, max, events: this.run?.events ?? [], count });
  }

  /**
   * Ask what another tau would make again; null: the one that is set.
   * @param {number | null} tau
   */
  tryTau(tau) {
    this.tau = tau;
    this.refresh();
    this.acts.ask();
  }

  // --- the film

  /**
   * Show a block's frame where the mouse is on it; null: the film goes on.
   * @param {number | null} number
   * @param {number | null} [share]
   */
  look(number, share = null) {
    this.view.look(
      number ? this.run?.events[number - 1] : undefined,
      joinAt(this.run, number ?? 0),
    );
    if (number) this.player.scrub(number, share);
    else this.player.release();
  }

  /**
   * The film goes on from this block.
   * @param {number} number
   */
  choose(number) {
    this.view.squares.rove(number);
    if (this.player.held?.[0] !== number) this.look(number, null);
    this.player.release(true);
    this.view.look(this.run?.events[number - 1], joinAt(this.run, number));
  }

  /** @param {number} number */
  enlarge(number) {
    if (this.takes.number) openSheet(this.view.sheet.element);
    else if (this.run?.events[number - 1]?.sprite && this.player.at) {
      const isOldNow = (/** @type {number | null} */ shown) => isOld(this.forecast, shown);
      const comparison = this.other && this.comparison;
      openLarge(this.player, this.view.squares.square(number), isOldNow, comparison);
    }
  }

  end() {
    this.player.end();
    this.live?.end();
    this.view.sheet.listen(false);
  }

  /** @param {boolean} on */
  play(on) {
    this.isOn = on;
    this.player.turn(on);
    this.room.play(on);
  }
}

/**
 * How long the video will be, or what is added to a clip.
 * @param {Inputs} inputs
 */
function lengthText({ blocks: count, start }) {
  const seconds = secondOf(count + 1, { ...start, clipSeconds: null }).toFixed(1);
  const values = { count, seconds };
  return start.clip ? text("lengthAdded", values) : text("length", values);
}

/**
 * What the cards ask of their strip.
 * @param {Strip} strip
 * @returns {import("./strip_board.js").BoardActs}
 */
function boardActs(strip) {
  return {
    write: (board) => strip.writeShots(board),
    lock: (number) => strip.actions.lockItem(number),
    release: (number) => strip.actions.releaseItem(number),
    choose: (number) => strip.choose(number),
    typing: () => {
      strip.refresh();
      strip.acts.ask();
    },
    takes: (number) => strip.takes.known(number).map(([take]) => take),
    make: (number, shot) => strip.takes.makeShot(number, shot),
    trial: (number) => strip.takes.trial(number),
  };
}
