// The shots of the video as cards below the film.
import { secondOf } from "./blocks.js";
import { make, makeButton, nameElement } from "./dom.js";
import { toast } from "./frontend.js";
import { isAgain, isOld, nextTake, pictureOf } from "./strip_model.js";
import { namesBlock } from "./prompt_lines.js";
import { ShotCard } from "./shot_card.js";
import { allowed, changed } from "./shot_changes.js";
import {
  cutShot,
  insertShot,
  lengthenShot,
  moveShot,
  removeShot,
  retakeShot,
  sayShot,
  splitShot,
} from "./shot_edits.js";
import { newKey, readBoard, shotAt, startsOf, writeBoard } from "./shots.js";
import { sayAsked } from "./strip_actions.js";
import { openMenu } from "./strip_menu.js";
import { blocksText, text } from "./words.js";

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
    this.fixed = 0;
    this.most = 0;
    this.element = make("ol", "sdvg-shots");
    this.last = make("li", "sdvg-add");
    this.add = makeButton("sdvg-button", "+", () => {
      const count = this.cards.length;
      this.edit(insertShot(this.board, count), count, "textarea");
    });
    this.last.append(this.add);
    this.element.append(this.last);
  }

  /**
   * Show the shots. Without a text there is none.
   * @param {BoardState} state
   */
  show(state) {
    this.board = (state.values && readBoard(state.values, state.before)) ?? EMPTY;
    this.key = newKey(this.board);
    this.before = state.before;
    this.fixed = state.before + state.kept;
    this.most = state.most;
    const { shots } = this.board;
    while (this.cards.length > shots.length) this.cards.pop()?.element.remove();
    while (this.cards.length < shots.length) this.cards.push(this.newCard(this.cards.length));
    this.element.setAttribute("aria-label", text("shots"));
    const starts = startsOf(shots);
    for (const [i, shot] of shots.entries()) this.draw(i, shot, starts[i], state);
    const isAllowed = shots.length ? this.allow(insertShot(this.board, shots.length)) : undefined;
    this.offer(this.add, text("addShot"), isAllowed);
  }

  /** How many shots there are; 0 if the text cannot be shown as cards. */
  get count() {
    return this.cards.length;
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
    const place = { first, last, before: this.before };
    const event = run && made ? pictureOf(place, run, signature) : undefined;
    const shown = event?.number ?? last;
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
      again: isAgain(forecast, shown),
      old: isOld(forecast, shown),
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
    const isLast = i + 1 === this.cards.length;
    const take = text("another", { take: this.nextTake(i) });
    const act = isLast ? text("retakeLast") : text("retake");
    this.offer(card.take, take, retaken, act, text("unlockFirst"));
    this.drawLock(i);
    const cutting = shot.cut ? text("goOn", { shot: i }) : text("cut", { shot: i + 1 });
    const cut = i > 0 ? this.allow(cutShot(this.board, i, !shot.cut)) : undefined;
    this.offer(card.cut, text("cutHere"), cut, cutting);
    card.cut.setAttribute("aria-pressed", String(shot.cut));
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
    const { stretches, adds } = changed(this.board, board);
    if (!stretches.length) return text("free");
    const blocks = stretches
      .map(({ from, to }) => blocksText(from - this.before, to - this.before))
      .join(text("comma"));
    return adds ? text("adds", { blocks }) : text("remakes", { blocks });
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
    const items = this.items(i);
    if (items.length) openMenu(this.cards[i].more, text("shot", { shot: i + 1 }), items);
  }

  /**
   * @param {number} i
   * @returns {MenuItem[][]}
   */
  items(i) {
    /**
     * @param {string} act
     * @param {ShotBoard | undefined} board
     * @param {number} focus
     * @param {string} [part]
     */
    const item = (act, board, focus, part) =>
      board ? [this.itemOf(act, board, () => this.edit(board, focus, part))] : [];
    const { length } = this.board.shots;
    const edits = [
      ...item(text("earlierShot"), i > 0 ? this.moved(i, i - 1) : undefined, i - 1),
      ...item(text("laterShot"), i + 1 < length ? this.moved(i, i + 1) : undefined, i + 1),
      ...item(text("addAfter"), this.allow(insertShot(this.board, i + 1)), i + 1, "textarea"),
      ...item(text("removeShot"), this.removed(i), Math.max(0, i - 1)),
    ];
    const isLocked = this.cards[i].first <= this.fixed - this.before;
    const release = isLocked ? [this.acts.release(this.cards[i].first)] : [];
    return [release, this.takeItems(i), edits].filter((group) => group.length);
  }

  /**
   * @param {string} act
   * @param {ShotBoard} board
   * @param {() => void} edit
   * @returns {MenuItem}
   */
  itemOf(act, board, edit) {
    return { text: text("does", { act, cost: this.cost(board) }), act: edit };
  }

  /**
   * The takes of a shot to choose from, where there are several.
   * @param {number} i
   * @returns {MenuItem[]}
   */
  takeItems(i) {
    const { asked, known } = this.takesOf(i);
    const first = this.firstFree(i);
    const takes = [...new Set([1, ...known, asked])].sort((a, b) => a - b);
    if (takes.length < 2 || first >= this.board.shots[i].marks.length) return [];
    return takes.map((take) => ({
      text: text("take", { take }),
      checked: take === asked,
      act: () => this.edit(retakeShot(this.board, i, first, take), i),
    }));
  }

  /**
   * @param {number} i
   * @param {number} to
   */
  moved(i, to) {
    return this.allow(moveShot(this.board, i, to, this.key));
  }

  /** @param {number} i */
  removed(i) {
    return this.board.shots.length > 1 ? this.allow(removeShot(this.board, i)) : undefined;
  }

  /**
   * Write another board, and have the focus on a shot of it.
   * @param {ShotBoard} board
   * @param {number} i
   * @param {string} [part]
   */
  edit(board, i, part = ".sdvg-shot-top .sdvg-button") {
    this.acts.write(board);
    const card = this.cards[i];
    if (!card || (card.element.contains(document.activeElement) && part !== "textarea")) return;
    const focused = part === "textarea" ? card.area : card.more;
    focused.focus({ preventScroll: true });
    if (focused === card.area) card.area.select();
    // Not scrollIntoView, which would also scroll everything around the strip.
    this.element.scrollTop = card.element.offsetTop - this.element.offsetTop - 8;
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
    if (typed !== card.prompt) this.acts.write(sayShot(this.board, i, card.area.value));
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
