// The takes of one block side by side, in place of the film.
import { withTake, takeOf } from "./blocks.js";
import { SAMPLER, promptNow, queuePart } from "./frontend.js";
import { isOld } from "./strip_model.js";
import { outcomeText, text } from "./words.js";

const AT_ONCE = 3; // takes of one wish

export class TakeSheet {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
    /** @type {number | null} */
    this.number = null; // the block whose takes are shown
    this.upTo = 0; // the last take in the making
    this.isMaking = false;
  }

  /**
   * Show the takes of a block, with those in the making up to `upTo`.
   * @param {number} number
   * @param {number} upTo
   */
  open(number, upTo) {
    this.strip.pair(null);
    this.number = number;
    this.upTo = upTo;
    this.strip.player.stop();
    this.strip.choose(number);
    this.strip.view.compare(true);
    this.strip.drawSheet();
  }

  /**
   * Show the film again.
   * @param {boolean} [focus]
   */
  close(focus = true) {
    if (!this.number) return;
    this.number = null;
    this.strip.view.compare(false);
    this.strip.drawSheet();
    if (focus) this.strip.focusSquare();
  }

  /** Show the takes; returns the events whose pictures are shown. */
  draw() {
    if (!this.number) return [];
    const takes = this.takes(this.number);
    this.strip.view.sheet.show(text("takesOf", { number: this.number }), takes);
    return takes.flatMap(({ event }) => (event?.sprite ? [event] : []));
  }

  /**
   * @param {number} number
   * @returns {Take[]}
   */
  takes(number) {
    const { strip } = this;
    /** @type {Map<number, BlockEvent | undefined>} */
    const known = new Map(strip.takesKnown(number));
    for (let take = this.upTo - AT_ONCE + 1; take <= this.upTo; take += 1)
      if (take > 1 && !known.has(take) && this.isMaking) known.set(take, undefined);
    const inputs = strip.inputs.now();
    const chosen = takeOf(inputs.takes, number);
    const shown = takeOf(strip.run?.takes ?? "", number);
    // The others were made with what is set now; the shown one is another picture than the take asked for.
    const isStale = isOld(strip.forecast, number) && chosen === shown;
    return [...known]
      .sort(([a], [b]) => a - b)
      .map(([key, event]) => ({
        key,
        event,
        label: labelOf(key, event),
        old: isStale && key === shown,
        chosen: key === chosen,
        act: () => strip.actions.retake(number, key),
      }));
  }

  /**
   * Make more takes of a block, one after the other, and show all that there are.
   * @param {number} number
   */
  async make(number) {
    const { strip } = this;
    if (strip.inputs.refuseWired("takes")) return;
    const known = strip.takesKnown(number).map(([take]) => take);
    const last = Math.max(takeOf(strip.inputs.now().takes, number), ...known);
    this.isMaking = true;
    this.open(number, last + AT_ONCE);
    try {
      await queueTakes(strip.node, number, last + 1);
    } catch (error) {
      this.isMaking = false;
      strip.drawSheet();
      if (!(/** @type {any} */ (error).response)) throw error; // the strip shows what the server refused
    }
  }
}

/**
 * @param {number} take
 * @param {BlockEvent | undefined} event
 */
function labelOf(take, event) {
  const parts = [text("take", { take }), event ? outcomeText(event) : text("making")];
  if (event && Number.isFinite(event.score)) parts.push(Number(event.score).toFixed(2));
  return parts.join(" · ");
}

/**
 * Queue runs that make the next takes of a block, one after the other; nothing behind the sampler runs but a report.
 * @param {GraphNode} node
 * @param {number} number
 * @param {number} from
 */
async function queueTakes(node, number, from) {
  const { output, workflow } = await promptNow();
  const id = idIn(output, node);
  const { inputs } = output[id];
  for (let take = from; take < from + AT_ONCE; take += 1) {
    const takes = withTake(String(inputs.takes ?? ""), Number(inputs.blocks), number, take);
    const sampler = { ...output[id], inputs: { ...inputs, takes, until_block: number } };
    const report = { report: [id, 2], prompt_in_report: false };
    const end = { class_type: "SDVGRouteReport", inputs: report, _meta: { title: "SDVG" } };
    const target = `${id}.take`;
    await queuePart({ ...output, [id]: sampler, [target]: end }, workflow, target);
  }
}

/**
 * The id of a sampler in a prompt: in a subgraph it is a path, such as "5:12".
 * @param {ApiPrompt} output
 * @param {GraphNode} node
 */
export function idIn(output, node) {
  const ids = Object.keys(output).filter((id) => output[id].class_type === SAMPLER);
  return ids.find((id) => id.split(":").at(-1) === String(node.id)) ?? String(node.id);
}
