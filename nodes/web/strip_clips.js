// The cards of footage on a board, among those of its shots.
import { ClipCard } from "./clip_card.js";
import { toast } from "./frontend.js";
import { spanBetween } from "./prompt_lines.js";
import { clipsBefore, editClip, moveClip, setClips } from "./shot_edits.js";
import { openMenu } from "./strip_menu.js";
import { text } from "./words.js";

const LIFE = 6000; // ms of a message

export class ClipRow {
  /** @param {import("./strip_board.js").Board} view */
  constructor(view) {
    this.view = view;
    /** @type {ClipCard[]} */
    this.cards = [];
    /** @type {{ at: number, n: number }[]} */
    this.places = []; // of the cards: before which shot, and which of those there
  }

  /** Show the footage of the board, each before its shot. */
  show() {
    const { board } = this.view;
    this.places = [...board.shots, null].flatMap((_, at) =>
      clipsBefore(board, at).map((_clip, n) => ({ at, n })),
    );
    while (this.cards.length > this.places.length) this.cards.pop()?.element.remove();
    while (this.cards.length < this.places.length) this.cards.push(this.newCard(this.cards.length));
    for (const [k, { at, n }] of [...this.places.entries()].reverse()) {
      const { element } = this.cards[k];
      const isBehind = this.places[k + 1]?.at === at;
      const shot = this.view.cards[at]?.element ?? this.view.last;
      const next = isBehind ? this.cards[k + 1].element : shot;
      if (element.nextElementSibling !== next) next.before(element);
      this.cards[k].draw(clipsBefore(board, at)[n]);
    }
  }

  /** @param {number} k */
  newCard(k) {
    return new ClipCard({ menu: () => this.openMenu(k), change: () => this.change(k) });
  }

  /**
   * Write what the boxes of a card say. The first second alone says nothing yet.
   * @param {number} k
   */
  change(k) {
    const card = this.cards[k];
    const { at, n } = this.places[k];
    if (card.first.value && !card.last.value) return;
    const span = spanBetween(card.first.value, card.last.value);
    const clip = { name: `#${card.name.value.trim()}`, span: span ?? "" };
    const edited = editClip(this.view.board, at, n, clip);
    const board = span === null ? undefined : this.view.allow(edited);
    if (board) this.view.write(board);
    else {
      card.undo();
      toast("info", text("clipWrong"), text("clipWrongDetail"), LIFE);
    }
  }

  /** @param {number} k */
  openMenu(k) {
    const { view } = this;
    const { board } = view;
    const { at, n } = this.places[k];
    const clips = clipsBefore(board, at);
    /**
     * @param {string} act
     * @param {ShotBoard} edited
     * @returns {MenuItem[]}
     */
    const item = (act, edited) => {
      const next = edited === board ? undefined : view.allow(edited);
      return next ? [{ text: act, act: () => view.write(next) }] : [];
    };
    const items = [
      ...item(text("earlierShot"), moveClip(board, at, n, -1)),
      ...item(text("laterShot"), moveClip(board, at, n, 1)),
      ...item(text("removeShot"), setClips(board, at, clips.toSpliced(n, 1))),
    ];
    if (items.length)
      openMenu(this.cards[k].more, text("clip", { clip: clips[n].name.slice(1) }), [items]);
  }
}
