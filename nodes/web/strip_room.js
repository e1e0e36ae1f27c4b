// How much room the parts of a strip take on its node.
import { drawsNodes, hasLine, rootGraph } from "./frontend.js";
import { HEIGHT } from "./sizes.js";
import { roomFor } from "./strip_model.js";

/** @type {Map<string, boolean>} */
const opened = new Map(); // workflow and node -> whether its cards are to be seen, where somebody chose
const CARD = 244; // pixels of a card's width, with its gap
const BESIDE = 40; // pixels of the node beside the cards
const MOST_ROWS = 2; // of cards that are seen at once

export class StripRoom {
  /**
   * @param {GraphNode} node
   * @param {HTMLElement} element
   */
  constructor(node, element) {
    this.node = node;
    this.element = element;
    this.rows = 1; // of cards
    this.isPlaying = true;
    /** @type {Record<string, boolean>} */
    this.isOpen = { shots: false, tau: false };
    /** @type {Record<string, number | undefined>} */
    this.grown = {}; // by how much the node has grown for a part
    /** @type {Record<string, number | undefined>} */
    this.lower = {}; // how high the node was as Nodes 2.0 made room for a part
  }

  /**
   * The same with and without a run, so that nothing below it moves when one begins. The node's line of text takes its room from the
   * strip: a node that grew for it would have changed, which would be a step to undo.
   */
  get height() {
    const parts = ["shots", "tau"].filter((part) => this.isOpen[part]);
    const base = this.isPlaying ? HEIGHT.playing : HEIGHT.still;
    const spare = hasLine(this.node) ? 0 : HEIGHT.line;
    return parts.reduce((sum, part) => sum + this.heightOf(part), base + spare);
  }

  /** Leave room for the line of text where the node shows none. */
  fitLine() {
    this.element.classList.toggle("with-line", hasLine(this.node));
  }

  /** @param {string} part */
  heightOf(part) {
    const more = part === "shots" ? (this.rows - 1) * (HEIGHT.shots - 6) : 0;
    return HEIGHT[part] + more;
  }

  /** @param {boolean} on */
  play(on) {
    this.isPlaying = on;
    this.element.classList.toggle("playing", on);
    this.node.setDirtyCanvas?.(true, true);
  }

  /**
   * Open or close the cards: with more than one, unless somebody closed them; where `on` says so, from now on.
   * @param {number} count
   * @param {boolean} [on]
   */
  fitCards(count, on) {
    const key = `${rootGraph()?.id} ${this.node.id}`;
    if (on !== undefined) opened.set(key, on);
    const open = count > 0 && (opened.get(key) ?? count > 1);
    const inRow = Math.max(1, Math.floor((this.node.size[0] - BESIDE) / CARD));
    const rows = Math.min(MOST_ROWS, Math.ceil(count / inRow) || 1);
    if (open === this.isOpen.shots && (!open || rows === this.rows)) return open;
    if (this.isOpen.shots) this.open("shots", false); // before it has other rows
    this.rows = rows;
    this.element.style.setProperty("--shots", `${this.heightOf("shots")}px`);
    if (open) this.open("shots", true);
    return open;
  }

  /**
   * Make room for a part, or take it away.
   * @param {string} part
   * @param {boolean} open
   */
  open(part, open) {
    if (this.isOpen[part] === open) return;
    this.isOpen[part] = open;
    this.element.classList.toggle(`with-${part}`, open);
    if (drawsNodes() || !this.node.computeSize) {
      delete this.grown[part];
      if (open) this.lower[part] = this.node.size?.[1];
      else this.giveBack(part);
      return;
    }
    const [width, before] = this.node.size;
    const { height, grown } = roomFor({
      height: before,
      least: this.node.computeSize()[1],
      usual: this.heightOf(part),
      grown: this.grown[part],
      open,
    });
    this.grown[part] = grown;
    this.node.setSize([width, height]);
    this.node.setDirtyCanvas?.(true, true);
  }

  /**
   * Take the room of a part away again in Nodes 2.0, which makes room by itself, but keeps the height that a node was saved with.
   * @param {string} part
   */
  giveBack(part) {
    if (!this.node.size) return;
    const [width, height] = this.node.size;
    const grown = height - (this.lower[part] ?? height);
    delete this.lower[part];
    this.node.setSize([
      width,
      height - (grown > 0 ? Math.min(grown, this.heightOf(part)) : this.heightOf(part)),
    ]);
  }
}
