// The shots of the video as cards below the film: first picture, prompt, length, and what can be done with each.
import { RATE, framesOf } from "./blocks.js";
import { make } from "./common.js";
import { isAgain, isOld } from "./runs.js";
import { addShot, allowed, changed, cutShot, lengthenShot, moveShot, readBoard, removeShot, retakeShot, sayShot, shotAt, splitShot, startsOf } from "./shots.js";
import { openMenu } from "./strip_menu.js";
import { bitmapOf, fetchSprite } from "./strip_player.js";
import { words } from "./strip_words.js";

export class Board {
  /**
   * `acts`: `write(board)`; `keep(number)`, what keeps the blocks up to one of the run, or null; `release(number)`, what gives up
   * a kept one; `paint(canvas, event, frame)`; `choose(number)` a block.
   */
  constructor(acts) {
    this.acts = acts;
    this.element = make("ol", "sdvg-shots");
    this.cards = [];
    const last = make("li", "sdvg-add");
    this.add = last.appendChild(make("button", "sdvg-button", "+", { type: "button" }));
    this.add.addEventListener("click", () => this.edit(addShot(this.board, this.cards.length - 1), this.cards.length, "textarea"));
    this.element.append(last);
  }

  /**
   * Show the shots of the nodes' `values`; `before`: how many blocks a clip gives, `kept`: how many of the run stay, `most`: how
   * many the node takes, `events`: the blocks that are made, `next`: what the next run makes again of them (runs.js), `start`: what the
   * video starts from. Without a text there is none.
   */
  show({ values, before, kept, most, events, next, start }) {
    this.board = values && readBoard(values, before);
    Object.assign(this, { before, fixed: before + kept, most, next, start });
    const { shots } = this.board ?? { shots: [] };
    while (this.cards.length > shots.length) this.cards.pop().element.remove();
    while (this.cards.length < shots.length) this.cards.push(this.card(this.cards.length));
    this.element.setAttribute("aria-label", words().shots);
    const starts = startsOf(shots);
    shots.forEach((shot, i) => this.draw(i, shot, starts[i], events));
    this.name(this.add, words().addShot, this.after(shots.length - 1, addShot));
  }

  /** How many shots there are; 0 if the text cannot be shown as cards. */
  get count() {
    return this.cards.length;
  }

  // --- the elements

  card(i) {
    const element = make("li", "sdvg-shot", "", { role: "group" });
    const top = element.appendChild(make("div", "sdvg-shot-top"));
    const canvas = top.appendChild(make("canvas", "blank", "", { "aria-hidden": true }));
    const title = top.appendChild(make("button", "sdvg-shot-title", "", { type: "button" }));
    const more = top.appendChild(make("button", "sdvg-button", "⋯", { type: "button", "aria-haspopup": "menu", "aria-expanded": false }));
    const area = element.appendChild(make("textarea", "", "", { rows: 2, spellcheck: false }));
    const length = element.appendChild(make("label", "sdvg-shot-length"));
    const count = length.appendChild(make("input", "", "", { type: "number", step: 1 }));
    const seconds = length.appendChild(make("span", ""));
    const row = element.appendChild(make("div", "sdvg-shot-row"));
    const [take, keep, cut] = ["take", "keep", "cut"].map((name) => row.appendChild(make("button", `sdvg-button sdvg-shot-${name}`, "", { type: "button" })));
    const card = { element, canvas, title, more, area, count, seconds, take, keep, cut };
    title.addEventListener("click", () => this.acts.choose(card.first));
    more.addEventListener("click", () => this.items(i).length && openMenu(more, words().shot(i + 1), this.items(i)));
    take.addEventListener("click", () => this.edit(this.retaken(i), i));
    keep.addEventListener("click", () => this.acts.keep(card.last)?.act());
    cut.addEventListener("click", () => this.edit(cutShot(this.board, i, !this.board.shots[i].cut), i));
    area.addEventListener("change", () => this.say(i));
    area.addEventListener("keydown", (event) => this.onKey(i, event));
    count.addEventListener("change", () => this.lengthen(i));
    count.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
    this.element.insertBefore(element, this.add.parentElement);
    return card;
  }

  draw(i, shot, from, events) {
    const card = this.cards[i];
    const to = from + shot.marks.length - 1;
    const made = Math.max(0, to - Math.max(from, this.before + 1) + 1); // by the run
    card.first = Math.max(1, from - this.before);
    card.last = to - this.before;
    const second = card.first > 1 ? framesOf(card.first - 1, this.start) / RATE : 0;
    const end = made ? framesOf(card.last, this.start) / RATE : 0;
    card.element.hidden = !made; // the clip's
    card.element.setAttribute("aria-label", words().shot(i + 1));
    card.title.textContent = words().shotAt(i + 1, second.toFixed(1));
    const blocks = words().blocks(card.first, card.last);
    card.title.title = isOld(this.next, card.last) ? `${blocks} · ${words().isOld}` : blocks;
    card.more.setAttribute("aria-label", words().shotMenu(i + 1));
    card.more.title = words().shotMenu(i + 1);
    card.area.setAttribute("aria-label", words().shotPrompt(i + 1));
    card.area.placeholder = words().asBefore;
    if (card.shown !== shot.prompt || document.activeElement !== card.area) card.area.value = shot.prompt;
    card.shown = shot.prompt;
    card.area.readOnly = to <= this.fixed;
    Object.assign(card.count, { value: made, min: Math.max(1, this.fixed - from + 1 - (shot.marks.length - made)), max: this.most, disabled: to < this.fixed });
    card.count.setAttribute("aria-label", words().shotBlocks(i + 1));
    card.seconds.textContent = words().blocksLong(made, (end - second).toFixed(1));
    this.drawButtons(i, card, shot);
    this.drawThumb(card, made ? events[card.first - 1] : undefined);
    card.canvas.classList.toggle("again", isAgain(this.next, card.first));
    card.canvas.classList.toggle("old", isOld(this.next, card.first));
  }

  drawButtons(i, card, shot) {
    const { letter, take } = shot.marks[this.firstFree(i)] ?? {};
    this.name(card.take, words().another((take ?? 1) + 1), letter && this.allow(this.retaken(i)), words().retake(i + 1 === this.cards.length));
    const keep = this.acts.keep(card.last);
    card.keep.textContent = words().lockShot;
    card.keep.title = keep?.old ? words().runFirst(keep.old) : (keep?.text ?? words().lockLater);
    card.keep.setAttribute("aria-label", card.keep.title);
    card.keep.disabled = !keep || keep.old !== "";
    this.name(card.cut, words().cutHere, i > 0 && this.allow(cutShot(this.board, i, !shot.cut)), shot.cut ? words().goOn(i + 1) : words().cut(i + 1));
    card.cut.setAttribute("aria-pressed", shot.cut);
  }

  drawThumb({ canvas }, event) {
    if (!event?.sprite) canvas.classList.add("blank");
    else if (bitmapOf(event)) this.acts.paint(canvas, event, 0);
    else if (canvas.dataset.asked !== event.run + event.number) {
      canvas.dataset.asked = event.run + event.number;
      fetchSprite(event, () => bitmapOf(event) && this.acts.paint(canvas, event, 0), new AbortController().signal);
    }
  }

  /** Write on a button what it does, and say what that makes again; without an edit it does nothing. */
  name(button, text, edit, act = text) {
    const label = edit ? words().does(act, this.cost(edit)) : text;
    button.textContent = text;
    button.title = label;
    button.setAttribute("aria-label", label);
    button.disabled = !edit;
  }

  // --- edits

  /** The board after an edit of a shot, or undefined if it must not be. */
  after(i, act, ...given) {
    return this.board && this.allow(act(this.board, i, ...given));
  }

  allow(board) {
    return allowed(this.board, board, this.fixed, this.most + this.before) ? board : undefined;
  }

  /** What an edit makes again. */
  cost(board) {
    const { from, count } = changed(this.board, board);
    const first = from - this.before;
    if (!count) return words().free;
    const blocks = words().blocks(first, first + count - 1);
    return from > startsOf(this.board.shots).at(-1) + this.board.shots.at(-1).marks.length - 1 ? words().adds(blocks) : words().changes(blocks);
  }

  /** The first block of a shot that may change, counted from 0 in it. */
  firstFree(i) {
    return Math.max(0, this.fixed - startsOf(this.board.shots)[i] + 1);
  }

  retaken(i) {
    return this.firstFree(i) < this.board.shots[i].marks.length ? retakeShot(this.board, i, this.firstFree(i)) : this.board;
  }

  items(i) {
    const item = (text, board, focus, part) => (board ? [{ text: words().does(text, this.cost(board)), act: () => this.edit(board, focus, part) }] : []);
    const { length } = this.board.shots;
    const { first } = this.cards[i];
    return [
      first <= this.fixed - this.before ? [this.acts.release(first)] : [],
      [
        ...(i > 0 ? item(words().earlierShot, this.after(i, moveShot, i - 1), i - 1) : []),
        ...(i + 1 < length ? item(words().laterShot, this.after(i, moveShot, i + 1), i + 1) : []),
        ...item(words().addAfter, this.after(i, addShot), i + 1, "textarea"),
        ...item(words().removeShot, length > 1 ? this.after(i, removeShot) : undefined, Math.max(0, i - 1)),
      ],
    ].filter((group) => group.length);
  }

  /** Write another board, and have the focus on a shot of it. */
  edit(board, i, part = ".sdvg-shot-top .sdvg-button") {
    this.acts.write(board);
    const element = this.cards[i]?.element;
    const focused = document.activeElement;
    if (!element || (element.contains(focused) && part !== "textarea")) return;
    element.querySelector(part).focus({ preventScroll: true });
    if (part === "textarea") element.querySelector(part).select();
    this.element.scrollLeft = element.offsetLeft - this.element.offsetLeft - 8;
  }

  /** Have a shot begin at a block of the run, and its prompt written; null if it must not be. */
  beginning(number) {
    const block = number + this.before;
    const board = number > 1 && this.board && this.allow(splitShot(this.board, block));
    return board ? () => this.edit(board, shotAt(board, block), "textarea") : null;
  }

  say(i) {
    if (!this.cards[i]) return; // it went with its text
    const { area, shown } = this.cards[i];
    if (area.value.trim() !== shown) this.acts.write(sayShot(this.board, i, area.value));
    if (this.cards[i]) this.cards[i].area.value = this.board.shots[i].prompt; // as it is written
    else this.cards.at(-1)?.area.focus({ preventScroll: true });
  }

  lengthen(i) {
    const { count } = this.cards[i];
    const clip = this.board.shots[i].marks.filter((mark) => !mark).length;
    const wanted = Math.max(Number(count.min), Math.round(Number(count.value)) || 0);
    const board = this.after(i, lengthenShot, wanted + clip);
    if (board) this.acts.write(board);
    else count.value = this.board.shots[i].marks.length - clip;
  }

  /** Enter takes the prompt, with Shift it begins a line; Escape brings back what was there. Control and Enter run the workflow. */
  onKey(i, event) {
    const { area, shown } = this.cards[i];
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) this.say(i);
    if (event.key === "Escape") area.value = shown;
    if (event.ctrlKey || event.metaKey) return;
    event.stopPropagation();
    if (event.key === "Enter" && !event.shiftKey) event.preventDefault();
    if (event.key === "Escape") this.cards[i].more.focus({ preventScroll: true });
  }
}
