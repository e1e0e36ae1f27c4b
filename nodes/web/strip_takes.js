// The takes of one block side by side, in place of the film.
import { withTake, takeOf } from "./blocks.js";
import { SAMPLER, promptNow, queuePart, toast } from "./frontend.js";
import { isAlike, takesKnown } from "./runs.js";
import { isOld } from "./strip_model.js";
import { outcomeText, text } from "./words.js";

const AT_ONCE = 3; // takes of one wish
const LIFE = 6000; // ms of a message

export class TakeSheet {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
    /** @type {number | null} */
    this.number = null; // the block whose takes are shown
    /** @type {Map<number, string>} */
    this.making = new Map(); // take -> the prompt that makes it, once it is queued
    /** @type {Set<string>} */
    this.over = new Set(); // prompts that have ended
  }

  /**
   * Show the takes of a block.
   * @param {number} number
   */
  open(number) {
    this.strip.pair(null);
    this.number = number;
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

  /** @returns {Asked} */
  get asked() {
    const { directions, takes, lock, shots } = this.strip.inputs.now();
    return { signature: this.strip.acts.signature(), directions, takes, kept: lock, shots };
  }

  /**
   * The takes of a block that are known, `[take, event]`.
   * @param {number} number
   */
  known(number) {
    const { run, acts } = this.strip;
    return run ? takesKnown(number, run, acts.others(), this.asked) : [];
  }

  /**
   * @param {number} number
   * @returns {Take[]}
   */
  takes(number) {
    const { strip, asked } = this;
    const others = strip.acts.others();
    /** @type {Map<number, BlockEvent | undefined>} */
    const known = new Map(this.known(number));
    // What was asked for is shown as it comes, whatever is asked meanwhile.
    for (const [take, prompt] of this.making) {
      const run = others.find(({ info }) => prompt && info.prompt === prompt);
      if (!known.has(take)) known.set(take, run?.events.at(0));
    }
    const chosen = takeOf(asked.takes, number);
    return [...known]
      .sort(([a], [b]) => a - b)
      .map(([key, event]) => {
        const old = event !== undefined && this.isOld(number, event);
        return {
          key,
          event,
          label: this.label(key, event, old),
          old,
          chosen: key === chosen,
          act: () => strip.actions.retake(number, key),
        };
      });
  }

  /**
   * Whether the picture of a take is another one than the next run has of it.
   * @param {number} number
   * @param {BlockEvent} event
   */
  isOld(number, event) {
    const { run, acts, forecast } = this.strip;
    const other = acts.others().find((known) => known.run === event.run);
    if (other) return !isAlike(other, number, this.asked);
    const { signature } = this.asked;
    if (signature && run?.info.signature && signature.rest !== run.info.signature.rest) return true;
    return isOld(forecast, number) && takeOf(this.asked.takes, number) === event.take;
  }

  /**
   * @param {number} take
   * @param {BlockEvent | undefined} event
   * @param {boolean} old
   */
  label(take, event, old) {
    const parts = [text("take", { take })];
    if (event) parts.push(outcomeText(event));
    else parts.push(this.over.has(this.making.get(take) ?? "") ? text("lost") : text("making"));
    if (event && Number.isFinite(event.score)) parts.push(Number(event.score).toFixed(2));
    if (old) parts.push(text("isOld"));
    return parts.join(" · ");
  }

  /**
   * Make more takes of a block, one after the other, and show all that there are.
   * @param {number} number
   */
  async make(number) {
    const { strip } = this;
    if (strip.inputs.refuseWired("takes")) return;
    const known = this.known(number).map(([take]) => take);
    const last = Math.max(takeOf(this.asked.takes, number), ...known);
    const making = new Map(Array.from({ length: AT_ONCE }, (_, i) => [last + 1 + i, ""]));
    this.making = making;
    this.over.clear();
    this.open(number);
    try {
      await queueTakes(strip.node, number, making);
      await strip.acts.askStatus(); // what ended before its id was known here
    } catch (error) {
      for (const [take, prompt] of making) if (!prompt) making.delete(take);
      if (!(/** @type {any} */ (error).response)) throw error; // the strip shows what the server refused
    } finally {
      strip.drawSheet();
    }
  }

  /**
   * Make a shot alone, up to its last block; the film stays where it is.
   * @param {number} number
   * @param {number} shot
   */
  async makeShot(number, shot) {
    const { strip } = this;
    if (strip.inputs.refuseWired("takes")) return;
    const take = takeOf(this.asked.takes, number);
    try {
      await queueTakes(strip.node, number, new Map([[take, ""]]));
      toast("info", text("makingShot", { shot }), text("makingShotDetail"), LIFE);
    } catch (error) {
      if (!(/** @type {any} */ (error).response)) throw error; // the strip shows what the server refused
    }
  }

  /**
   * The event of a block that a run up to it made, by what is asked now.
   * @param {number} number
   */
  trial(number) {
    const { asked } = this;
    /** @param {Run} run */
    const isAsked = (run) =>
      run.info.until === number &&
      takeOf(run.takes, number) === takeOf(asked.takes, number) &&
      isAlike(run, number, asked);
    const run = this.strip.acts.others().findLast(isAsked);
    return run?.events.find((event) => event.number === number);
  }

  /**
   * Expect nothing more of a prompt; without one, of any.
   * @param {string} [prompt]
   */
  end(prompt) {
    for (const ended of prompt ? [prompt] : this.making.values()) if (ended) this.over.add(ended);
    this.strip.drawSheet();
  }
}

/**
 * Queue runs that make takes of a block, one after the other; nothing behind the sampler runs but a report.
 * @param {GraphNode} node
 * @param {number} number
 * @param {Map<number, string>} making take -> its prompt, which is filled in
 */
async function queueTakes(node, number, making) {
  const { output, workflow } = await promptNow();
  const id = idIn(output, node);
  const { inputs } = output[id];
  for (const take of making.keys()) {
    const takes = withTake(String(inputs.takes ?? ""), Number(inputs.blocks), number, take);
    const sampler = { ...output[id], inputs: { ...inputs, takes, until_block: number } };
    const report = { report: [id, 2], prompt_in_report: false };
    const end = { class_type: "SDVGRouteReport", inputs: report, _meta: { title: "SDVG" } };
    const target = `${id}.take`;
    const prompt = { ...output, [id]: sampler, [target]: end };
    making.set(take, (await queuePart(prompt, workflow, target)).prompt_id);
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
