// What can be done at a block of a strip: by its menu, and by keys.
import { letterOf, takeOf, withLetter, withTake } from "./blocks.js";
import { beginOf, isLocked, lockFor, unlockFor, withoutStrays } from "./locks.js";
import { isGoing } from "./runs.js";
import { toast } from "./frontend.js";
import { openMenu } from "./strip_menu.js";
import { nextTake } from "./strip_model.js";
import { blocksText, text } from "./words.js";

const LIFE = 6000; // ms of a message
const LOCKED = [".", "t", "d", "w", "n", "c"]; // keys that do nothing at a locked block

/**
 * Say why there is no other take yet.
 * @param {number} take that is asked for
 */
export function sayAsked(take) {
  toast("info", text("asked", { take }), text("askedDetail"), LIFE);
}

export class StripActions {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
  }

  get inputs() {
    return this.strip.inputs.now();
  }

  /**
   * @param {number | null} number
   * @param {HTMLElement} [anchor]
   */
  open(number, anchor = this.strip.view.squares.square(number)) {
    if (!number || !anchor) return;
    const groups = this.items(number).filter((items) => items.length);
    const isLive = Boolean(this.strip.live?.run);
    if (!groups.length || (!isLive && !this.strip.view.squares.isUsable(number))) return;
    openMenu(anchor, isLive ? text("live.menu") : text("menu", { number }), groups);
  }

  /**
   * Whether a key on a square did something.
   * @param {number} number
   * @param {string} key
   */
  onKey(number, key) {
    const { strip } = this;
    if (key === "p") strip.player.toggle();
    else if (key === "e") strip.enlarge(number);
    else {
      const item = this.items(number)
        .flat()
        .find((other) => other.key === key);
      item?.act();
      return Boolean(item) || this.explain(number, key);
    }
    return true;
  }

  /**
   * Say why a key does nothing at a block; whether there was anything to say.
   * @param {number} number
   * @param {string} key
   */
  explain(number, key) {
    const isKept = isLocked(number, this.inputs) && LOCKED.includes(key);
    const isAsked = !isKept && key === "n";
    if (isKept) toast("info", text("blockLocked", { number }), text("blockLockedDetail"), LIFE);
    if (isAsked) sayAsked(takeOf(this.inputs.takes, number));
    return isKept || isAsked;
  }

  /**
   * What can be done at a block, in groups: its menu has them all, and a key on its square does one.
   * @param {number} number
   * @returns {MenuItem[][]}
   */
  items(number) {
    const film = this.filmItems(number);
    const { live } = this.strip;
    if (live?.run) return [live.items(number), film.filter(({ key }) => key === "e")];
    if (!this.strip.view.squares.isUsable(number)) return [film];
    const lock = this.lockRefusal(number) ? null : this.lockItem(number);
    const release = this.releaseItem(number);
    const locks = [lock, release].filter((item) => item !== null);
    if (isLocked(number, this.inputs)) return [locks, film];
    const recording = this.strip.recording.items();
    return [this.choiceItems(number), this.takeItems(number), locks, film, recording];
  }

  /** @param {number} number */
  filmItems(number) {
    const { strip } = this;
    /** @type {MenuItem[]} */
    const items = [];
    if (strip.run?.events[number - 1]?.sprite)
      items.push({ key: "e", text: text("enlarge"), act: () => strip.enlarge(number) });
    const before = strip.before().at(-1);
    if (before && strip.isOn && strip.other)
      items.push({ key: "b", text: text("close"), act: () => strip.pair(null) });
    if (before && strip.isOn && !strip.other)
      items.push({ key: "b", text: text("twoRuns"), act: () => strip.pair(before.run) });
    return items;
  }

  /** @param {number} number */
  choiceItems(number) {
    const { strip } = this;
    const letter = letterOf(this.inputs.directions, number);
    /**
     * @param {string} key
     * @param {string} name
     * @returns {MenuItem}
     */
    const choice = (key, name) => ({
      key,
      text: name,
      checked: letter === key,
      act: () => this.spoken(number, () => this.direct(number, key)),
    });
    const items = [
      choice(".", text("router")),
      choice("t", text("target")),
      choice("d", text("draft")),
    ];
    const begin = strip.board.beginning(number);
    const act = () => {
      if (strip.openShots(true)) begin?.();
    };
    if (begin) items.push({ key: "w", text: this.promptFrom(number), act });
    return items;
  }

  /**
   * The name of what has a prompt begin at a block, with the number of its line where that is another one.
   * @param {number} number
   */
  promptFrom(number) {
    const { before } = this.strip.board;
    if (!before) return text("promptFrom", { number });
    return text("promptFromLine", { number, line: number + before });
  }

  /** @param {number} number */
  takeItems(number) {
    const { strip } = this;
    /** @type {MenuItem[]} */
    const items = [];
    const asked = takeOf(this.inputs.takes, number);
    const known = strip.takes.known(number).map(([take]) => take);
    const take = nextTake(known);
    const act = () => this.spoken(number, () => this.retake(number, take));
    if (take !== asked) items.push({ key: "n", text: text("another", { take }), act });
    if (strip.run?.events[number - 1] && !isGoing(strip.run))
      items.push({ key: "c", text: text("compare"), act: () => strip.takes.make(number) });
    if (asked > 1) items.push({ text: text("first"), act: () => this.retake(number, 1) });
    return items;
  }

  /**
   * Do something at a square, and say to a screen reader what it says then.
   * @param {number} number
   * @param {() => void} act
   */
  spoken(number, act) {
    act();
    this.strip.view.squares.say(number);
  }

  /**
   * Why the blocks up to one cannot be locked, whatever picture they have; empty if they can.
   * @param {number} number
   */
  lockRefusal(number) {
    if (this.inputs.start.restyle) return text("restyled");
    if (this.strip.refusal) return this.strip.refusal;
    return this.strip.isForgotten ? text("forgotten", { blocks: this.blocksUpTo(number) }) : "";
  }

  /**
   * The blocks of a shot up to one.
   * @param {number} number
   */
  blocksUpTo(number) {
    return blocksText(beginOf(number, this.inputs), number);
  }

  /**
   * What locks the blocks of a shot up to one; null if nothing does. `problem`: why a shot must not be locked now, or empty.
   * @param {number} number
   */
  lockItem(number) {
    const { strip } = this;
    const found = lockFor(number, this.inputs, strip.run, strip.forecast);
    if (!found) return null;
    const old = found.old ? blocksText(found.old, number) : "";
    const blocks = this.blocksUpTo(number);
    const name = old ? text("lockOld", { blocks: old }) : text("lock", { blocks });
    const stale = old ? text("runFirst", { blocks: old }) : "";
    const problem = this.lockRefusal(number) || stale;
    return { key: "k", text: name, problem, act: () => this.keep(found, blocks) };
  }

  /**
   * What gives up a locked block, and those of its shot after it; where its shot has no lock, those of shots that the video does not have.
   * Null if there is none.
   * @param {number} number
   * @returns {MenuItem | null}
   */
  releaseItem(number) {
    const { strip, inputs } = this;
    const left = unlockFor(number, inputs, strip.run);
    if (!left) return this.strayItem();
    const blocks = blocksText(left.from, left.to);
    const act = () =>
      left.part ? this.keep(left, blocks, true) : strip.inputs.write("kept_blocks", left.lock);
    return { text: text("unlock", { blocks }), act };
  }

  /** @returns {MenuItem | null} */
  strayItem() {
    const lock = withoutStrays(this.inputs);
    if (lock === null) return null;
    return { text: text("unlockGone"), act: () => this.strip.inputs.write("kept_blocks", lock) };
  }

  /**
   * Keep the first blocks of a shot as they are, once the server has written them.
   * @param {{ lock: string, part: string }} locks all of them, and the one of the shot
   * @param {string} blocks their names
   * @param {boolean} [silent]
   */
  async keep({ lock, part }, blocks, silent = false) {
    const { inputs, acts } = this.strip;
    if (inputs.refuseWired("kept_blocks")) return;
    if (await acts.keep(part, blocks, silent)) inputs.write("kept_blocks", lock);
  }

  /** Stop the run that is under way, of takes or of the film. */
  stop() {
    const { acts, run } = this.strip;
    const going = acts.others().find(isGoing) ?? run;
    if (going) acts.stop(going);
  }

  /**
   * @param {number} number
   * @param {string} letter
   */
  direct(number, letter) {
    const { directions, blocks } = this.inputs;
    this.strip.inputs.write("directions", withLetter(directions, blocks, number, letter));
  }

  /**
   * @param {number} number
   * @param {number} take
   */
  retake(number, take) {
    const { takes, blocks } = this.inputs;
    this.strip.inputs.write("takes", withTake(takes, blocks, number, take));
  }
}
