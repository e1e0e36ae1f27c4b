// The shots of the video as cards below the film.
import { secondOf } from "./blocks.js";
import { make, makeButton, nameElement } from "./dom.js";
import { toast } from "./frontend.js";
import { isAgain, isOld, nextTake } from "./strip_model.js";
import { namesBlock } from "./prompt_lines.js";
import { ShotCard } from "./shot_card.js";
import { allowed, originsLost } from "./shot_changes.js";
import {
  appendShot,
  cutShot,
  freshShot,
  lengthenShot,
  moveShot,
  retakeShot,
  sayShot,
  splitShot,
} from "./shot_edits.js";
import { shotItems } from "./shot_menu.js";
import { placesOf, shotPicture } from "./shot_pictures.js";
import { costText, originText, shotsOf } from "./shot_sentences.js";
import { newKey, readBoard, shotAt, startsOf, tailShot, writeBoard } from "./shots.js";
import { ClipRow } from "./strip_clips.js";
import { sayAsked } from "./strip_actions.js";
import { openMenu } from "./strip_menu.js";
import { text } from "./words.js";

const LIFE = 6000; // ms of a message
/** @type {ShotBoard} */
const EMPTY = { shots: [], clips: [], later: [] };

/**
 * @typedef {object} BoardActs
 * @property {(board: ShotBoard) => void} write
 * @property {(number: number) => { text: string, problem: string, act: () => void } | null} lock what locks the blocks up to one
 * @property {(number: number) => MenuItem} release what unlocks one
 * @property {(number: number) => void} choose a block
 * @property {() => void} typing as words are typed on a card
 * @property {(number: number) => number[]} takes of a block that exist
 * @property {(number: number, shot: number) => void} make the run of a shot alone, up to its last block
 * @property {(number: number) => BlockEvent | undefined} trial the event of a block that such a run made, by what is asked now
 */

/**
 * What a board is shown by. `before`: how many blocks a clip gives, `kept`: how many of the run stay, `most`: how many the node takes.
 * @typedef {object} BoardState
 * @property {BoardValues | undefined} values
 * @property {number} before
 * @property {number} kept
 * @property {number} most
 * @property {Run | null} run whose pictures are shown
 * @property {Signature | undefined} signature of what is set
 * @property {boolean} isKnown whether the signature is that of what is set by now, else the pictures stay
 * @property {Forecast | null} forecast
 * @property {VideoStart} start
 */

export class Board {
  /** @param {BoardActs} acts */
  constructor(acts) {
    this.acts = acts;
    /** @type {ShotBoard} */
    this.board = EMPTY;
    /** @type {ShotCard[]} */
    this.cards = [];
    this.key = ""; // for the next shot that begins afresh
    this.before = 0;
    this.isPlaced = false; // a clip is restyled, of which each shot has its stretch
    /** @type {Omit<import("./shot_pictures.js").AskedFilm, "signature">} */
    this.asked = { places: [], before: 0, directions: "", takes: "" };
    this.fixed = 0;
    this.most = 0;
    this.element = make("ol", "sdvg-shots");
    this.last = make("li", "sdvg-add");
    this.add = makeButton("sdvg-button", "+", () => {
      this.edit(appendShot(this.board, this.key), this.cards.length, "textarea");
    });
    this.last.append(this.add);
    this.element.append(this.last);
    this.clips = new ClipRow(this);
  }

  /**
   * Show the shots. Without a text there is none.
   * @param {BoardState} state
   */
  show(state) {
    this.board = (state.values && readBoard(state.values, state.before)) ?? EMPTY;
    this.key = newKey(this.board);
    this.before = state.before;
    this.isPlaced = state.start.restyle;
    this.fixed = state.before + state.kept;
    const { directions = "", takes = "" } = state.values ?? {};
    const places = placesOf(this.board.shots, state.before);
    this.asked = { places, before: state.before, directions, takes };
    this.most = state.most;
    const { shots } = this.board;
    while (this.cards.length > shots.length) this.cards.pop()?.element.remove();
    while (this.cards.length < shots.length) this.cards.push(this.newCard(this.cards.length));
    this.element.setAttribute("aria-label", text("shots"));
    const starts = startsOf(shots);
    for (const [i, shot] of shots.entries()) this.draw(i, shot, starts[i], state);
    this.clips.show();
    const isAllowed = shots.length ? this.allow(appendShot(this.board, this.key)) : undefined;
    this.offer(this.add, text("addShot"), isAllowed);
  }

  /** How many cards there are; 0 if the text cannot be shown as cards. */
  get count() {
    return this.cards.length + this.clips.cards.length;
  }

  /** The whole prompt with the words that are typed on a card, and not entered yet; null without any. */
  get draft() {
    const i = this.cards.findIndex((card) => card.isTyped);
    return i < 0 ? null : writeBoard(sayShot(this.board, i, this.cards[i].area.value)).text;
  }

  /** @param {number} i */
  newCard(i) {
    const card = new ShotCard({
      choose: () => this.acts.choose(this.cards[i].first),
      menu: () => this.openMenu(i),
      take: () => {
        const take = this.nextTake(i);
        const retaken = this.retaken(i);
        if (this.takesOf(i).asked === take) sayAsked(take);
        else if (retaken) this.edit(retaken, i);
      },
      lock: () => this.lock(i),
      cut: () => this.edit(cutShot(this.board, i, !this.board.shots[i].cut), i),
      fresh: () => this.edit(this.withFresh(i), i),
      move: (by) => this.move(i, by),
      prompt: () => this.say(i),
      typing: () => this.acts.typing(),
      length: () => this.lengthen(i),
      key: (event) => this.onKey(i, event),
    });
    this.element.insertBefore(card.element, this.last);
    return card;
  }

  /**
   * @param {number} i
   * @param {Shot} shot
   * @param {number} from
   * @param {BoardState} state
   */
  draw(i, shot, from, { run, signature, isKnown, forecast, start }) {
    const to = from + shot.marks.length - 1;
    const first = Math.max(1, from - this.before);
    const last = to - this.before;
    const made = Math.max(0, to - Math.max(from, this.before + 1) + 1); // by the run
    const second = secondOf(first, start);
    const asked = { ...this.asked, signature };
    const inFilm = run && made ? shotPicture({ first, last }, run, asked, forecast) : undefined;
    const trial = made ? this.acts.trial(last) : undefined;
    const event = trial ?? inFilm?.event;
    if (isKnown || !run) this.cards[i].drawThumb(event);
    this.cards[i].draw({
      number: i + 1,
      first,
      last,
      made,
      second,
      line: this.before && from > this.before ? from : 0,
      seconds: made ? secondOf(last + 1, start) - second : 0,
      prompt: shot.prompt,
      strength: shot.strength.trim(),
      cut: shot.cut,
      fixed: to <= this.fixed,
      least: Math.max(1, this.fixed - from + 1 - (shot.marks.length - made)),
      most: this.mostOf(made),
      lasts: to < this.fixed,
      again: isAgain(forecast, trial ? last : (inFilm?.at ?? last)),
      old: !trial && Boolean(inFilm?.old),
      oldLast: isOld(forecast, last),
    });
    this.drawButtons(i, shot);
  }

  /**
   * How many blocks a shot may have, beside the others.
   * @param {number} made
   */
  mostOf(made) {
    const all = this.board.shots.reduce((sum, { marks }) => sum + marks.length, 0) - this.before;
    return this.most - all + made;
  }

  /**
   * @param {number} i
   * @param {Shot} shot
   */
  drawButtons(i, shot) {
    const card = this.cards[i];
    const retaken = this.retaken(i);
    const isLast = tailShot(this.board.shots, i) === i;
    const take = text("another", { take: this.nextTake(i) });
    const act = isLast ? text("retakeLast") : text("retake");
    this.offer(card.take, take, retaken, act, text("unlockFirst"));
    this.drawLock(i);
    const cutting = shot.cut ? text("goOn", { shot: i }) : text("cut", { shot: i + 1 });
    const cut = i > 0 ? this.allow(cutShot(this.board, i, !shot.cut)) : undefined;
    this.offer(card.cut, text("cutHere"), cut, cutting);
    card.cut.setAttribute("aria-pressed", String(shot.cut));
    this.drawFresh(i, shot);
  }

  /**
   * @param {number} i
   * @param {Shot} shot
   */
  drawFresh(i, { fresh }) {
    const button = this.cards[i].fresh;
    const caption = fresh?.from ? originText(this.board.shots, fresh.from).short : text("fresh");
    const act = fresh ? text("freshOn", { shot: i }) : text("freshOff", { shot: i + 1 });
    this.offer(button, caption, i > 0 ? this.allow(this.withFresh(i)) : undefined, act);
    button.setAttribute("aria-pressed", String(Boolean(fresh)));
    button.hidden = i === 0; // it always begins afresh
    const isFilm = this.board.shots.every((shot) => !shot.fresh);
    this.cards[i].element.classList.toggle("afresh", !isFilm && (i === 0 || fresh !== null));
  }

  /**
   * A shot begins afresh if it went on, and the other way round.
   * @param {number} i
   */
  withFresh(i) {
    return freshShot(this.board, i, this.board.shots[i].fresh ? "" : this.key);
  }

  /**
   * Move a shot by one place.
   * @param {number} i
   * @param {number} by
   */
  move(i, by) {
    const to = i + by;
    const isPlace = to >= 0 && to < this.cards.length;
    const board = isPlace ? this.allow(moveShot(this.board, i, to, this.key)) : undefined;
    if (board) this.edit(board, to);
  }

  /**
   * A locked shot has its lock pressed, which gives it up.
   * @param {number} i
   */
  drawLock(i) {
    const { first, last, keep } = this.cards[i];
    const isLocked = last <= this.fixed - this.before;
    const lock = isLocked ? null : this.acts.lock(last);
    const offered = lock?.problem || lock?.text;
    keep.textContent = isLocked ? text("isLocked") : text("lockShot");
    keep.setAttribute("aria-pressed", String(isLocked));
    keep.disabled = !isLocked && (!lock || lock.problem !== "");
    nameElement(keep, isLocked ? this.acts.release(first).text : (offered ?? text("lockLater")));
  }

  /** @param {number} i */
  lock(i) {
    const { first, last } = this.cards[i];
    if (last <= this.fixed - this.before) this.acts.release(first).act();
    else this.acts.lock(last)?.act();
  }

  /**
   * Write on a button what it does, and say what that makes again; without an edit it does nothing.
   * @param {HTMLButtonElement} button
   * @param {string} caption
   * @param {ShotBoard | undefined} edit
   * @param {string} [act]
   * @param {string} [problem] why it does nothing
   */
  offer(button, caption, edit, act = caption, problem = caption) {
    button.textContent = caption;
    nameElement(button, edit ? text("does", { act, cost: this.cost(edit) }) : problem);
    button.disabled = !edit;
  }

  // --- edits

  /**
   * A board, or undefined if it must not be.
   * @param {ShotBoard} board
   */
  allow(board) {
    const isAllowed = allowed(this.board, board, this.fixed, this.most + this.before);
    return isAllowed ? board : undefined;
  }

  /**
   * What an edit makes again.
   * @param {ShotBoard} board
   */
  cost(board) {
    return costText(this.board, board, this);
  }

  /**
   * The first block of a shot that may change, counted from 0 in it.
   * @param {number} i
   */
  firstFree(i) {
    return Math.max(0, this.fixed - startsOf(this.board.shots)[i] + 1);
  }

  /**
   * The takes of a shot's first block that exist, and the one that is asked for.
   * @param {number} i
   */
  takesOf(i) {
    const { marks } = this.board.shots[i];
    const asked = marks[this.firstFree(i)]?.take ?? 1;
    const number = startsOf(this.board.shots)[i] + this.firstFree(i) - this.before;
    return { asked, known: this.acts.takes(number) };
  }

  /**
   * The take after the last one that exists.
   * @param {number} i
   */
  nextTake(i) {
    return nextTake(this.takesOf(i).known);
  }

  /**
   * A shot with another take; undefined where all of it is locked.
   * @param {number} i
   */
  retaken(i) {
    const first = this.firstFree(i);
    const isFree = first < this.board.shots[i].marks.length;
    return isFree ? this.allow(retakeShot(this.board, i, first, this.nextTake(i))) : undefined;
  }

  /** @param {number} i */
  openMenu(i) {
    const items = shotItems(this, i);
    if (items.length) openMenu(this.cards[i].more, text("shot", { shot: i + 1 }), items);
  }

  /**
   * Write another board, and have the focus on a shot of it.
   * @param {ShotBoard} board
   * @param {number} i
   * @param {string} [part]
   */
  edit(board, i, part = ".sdvg-shot-top .sdvg-button") {
    this.write(board);
    const card = this.cards[i];
    if (!card || (card.element.contains(document.activeElement) && part !== "textarea")) return;
    const focused = part === "textarea" ? card.area : card.more;
    focused.focus({ preventScroll: true });
    if (focused === card.area) card.area.select();
    // Not scrollIntoView, which would also scroll everything around the strip.
    this.element.scrollTop = card.element.offsetTop - this.element.offsetTop - 8;
  }

  /**
   * Write another board, and say which shots begin with nothing now, as what they began with is gone or behind them.
   * @param {ShotBoard} board
   */
  write(board) {
    const lost = originsLost(this.board, board);
    this.acts.write(board);
    for (const shot of shotsOf(board, lost))
      toast("info", text("lostOrigin", { shot }), text("lostOriginDetail"), LIFE);
  }

  /**
   * What has a shot begin at a block of the run, and its prompt written; null if it must not be.
   * @param {number} number
   */
  beginning(number) {
    const block = number + this.before;
    if (number < 2 || !this.count) return null;
    const board = this.allow(splitShot(this.board, block));
    return board ? () => this.edit(board, shotAt(board, block), "textarea") : null;
  }

  /**
   * Write the prompt that was typed.
   * @param {number} i
   */
  say(i) {
    const card = this.cards[i];
    if (!card) return; // it went with its text
    const typed = card.area.value.trim();
    if (!i && !typed) toast("info", text("shotPrompt", { shot: 1 }), text("firstPrompt"), LIFE);
    if (typed !== card.prompt) this.write(sayShot(this.board, i, card.area.value));
    const shot = this.board.shots[i];
    if (typed.split("\n").slice(1).some(namesBlock))
      toast("info", text("joined"), text("joinedDetail"), LIFE);
    if (this.cards[i] && shot)
      this.cards[i].area.value = shot.prompt; // as it is written
    else this.cards[this.cards.length - 1]?.area.focus({ preventScroll: true });
  }

  /**
   * Give a shot the number of blocks that was typed, or the nearest that it can have.
   * @param {number} i
   */
  lengthen(i) {
    const { count } = this.cards[i];
    const clip = this.board.shots[i].marks.filter((mark) => !mark).length;
    const wanted = Math.round(Number(count.value)) || 0;
    const fitted = Math.max(Number(count.min), Math.min(Number(count.max), wanted));
    const board = this.allow(lengthenShot(this.board, i, fitted + clip));
    if (board) this.acts.write(board);
    if (fitted !== wanted) toast("info", text("shotBlocks", { shot: i + 1 }), count.title, LIFE);
    count.value = String(this.board.shots[i].marks.length - clip);
  }

  /**
   * Enter takes the prompt, with Shift it begins a line; Escape brings back what was there. Control and Enter run the workflow.
   * @param {number} i
   * @param {KeyboardEvent} event
   */
  onKey(i, event) {
    const { area, prompt, title } = this.cards[i];
    if (event.isComposing) return;
    const isTaken = event.key === "Enter" && !event.shiftKey;
    if (isTaken) this.say(i);
    if (event.key === "Escape") {
      area.value = prompt;
      this.acts.typing();
    }
    if (event.ctrlKey || event.metaKey) return;
    event.stopPropagation();
    if (isTaken) event.preventDefault();
    if (isTaken) (this.cards[i]?.title ?? title).focus({ preventScroll: true });
    if (event.key === "Escape") this.cards[i].more.focus({ preventScroll: true });
  }
}
