// What a strip does with the recording of a live session: it goes into the graph, and the next run finishes it.
import { isLinked, isOpening, setWidgets, toast } from "./frontend.js";
import {
  holdsRecording,
  recordingProblem,
  takeLost,
  takeQueued,
  textOf,
  writeRecording,
} from "./live_recording.js";
import { asOneStepWithHeights } from "./measured_step.js";
import { recordingOf } from "./runs.js";
import { openText } from "./strip_dialog.js";
import { madeText } from "./strip_sentences.js";
import { idIn } from "./strip_takes.js";
import { text } from "./words.js";

const LIFE = 8000; // ms of a message
const MOST_DROPPED = 6; // recordings in the menu
// The route by which the menu has a recording refined, as the router's inputs have it.
const REFINED = { policy: "refine", "policy.strength": "medium" };

export class StripRecording {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
    /** @type {{ key: string, runs: Record<string, Forecast> } | null} */
    this.refined = null; // what the server says of refining it, by run, and what was asked then
  }

  /** The newest session with a recording. */
  get session() {
    const runs = [...this.strip.acts.others(), this.strip.run];
    return runs.findLast((run) => run && recordingOf(run)) ?? null;
  }

  /** Its recording. */
  get recording() {
    return this.session && recordingOf(this.session);
  }

  /** Whether the strip shows its film, and the graph holds it: it was made as it is asked for, though another route makes it again. */
  get isShown() {
    const { recording } = this;
    return Boolean(this.isFilm && recording && holdsRecording(this.strip.inputs, recording));
  }

  /** Whether the strip shows the film of the newest session. */
  get isFilm() {
    const { run, acts } = this.strip;
    const session = acts.others().findLast(({ info }) => info.live);
    const isOfIt = run?.info.prompt === session?.info.prompt;
    return Boolean(session && recordingOf(session) && isOfIt);
  }

  /**
   * What can be done with it.
   * @returns {MenuItem[]}
   */
  items() {
    const { recording, strip } = this;
    if (!recording) return [];
    /** @type {MenuItem[]} */
    const items = [
      { text: text("live.asText"), act: () => this.offer("") },
      ...this.droppedItems(),
    ];
    if (this.canRefine) items.unshift({ text: this.refineText(), act: () => this.refine() });
    if (holdsRecording(strip.inputs, recording)) {
      const finish = withCost(text("live.finish"), strip.forecast);
      items.unshift({ text: finish, act: () => void strip.acts.queue() });
    }
    return items;
  }

  /**
   * What *again* dropped, the newest first.
   * @returns {MenuItem[]}
   */
  droppedItems() {
    const items = (this.session?.done?.dropped ?? []).map((dropped, i) => ({
      text: text("live.droppedAsText", { number: i + 1, count: dropped.blocks }),
      act: () => this.offer("", dropped),
    }));
    return items.slice(-MOST_DROPPED).reverse();
  }

  // --- refined, which is another route

  /** Whether the graph holds a recording, and has a large model and a router that may refine it, which it does not yet. */
  get canRefine() {
    const { recording, strip } = this;
    const { inputs, node } = strip;
    const route = inputs.routeSource();
    if (!recording || !route || route.widget.value === REFINED.policy) return false;
    return isLinked(node, ({ name }) => name === "target") && holdsRecording(inputs, recording);
  }

  refineText() {
    const { refined, strip } = this;
    const act = text("live.refine", { strength: REFINED["policy.strength"] });
    const isKnown = strip.run && refined?.key === strip.key && !strip.refusal;
    return withCost(act, isKnown ? (refined.runs[strip.run?.run ?? ""] ?? null) : null);
  }

  /**
   * Put the route by which it would be refined in the place of the one that is set.
   * @param {ApiPrompt} output
   */
  tryRefine(output) {
    const { node, inputs } = this.strip;
    const wire = output[idIn(output, node)]?.inputs.router;
    const router = Array.isArray(wire) ? output[wire[0]] : undefined;
    if (router && inputs.routeSource()) Object.assign(router.inputs, REFINED);
  }

  /** Have the large model refine it: as one step that can be undone the router refines, and the workflow is queued. */
  refine() {
    const { strip } = this;
    const route = strip.inputs.routeSource();
    if (!route) return;
    asOneStepWithHeights(() => {
      setWidgets(Object.entries(REFINED).map(([name, value]) => [route.node, name, value]));
      strip.refresh(); // the line of tau goes, and with it some of the node's height
    });
    void strip.acts.queue();
  }

  /**
   * A session is over: once, write its recording into the graph that it was queued from, if that is still as it was then.
   * @param {Run} run
   */
  settle({ info, done }) {
    const queued = done && !isOpening() && takeQueued(info.prompt, this.strip.node);
    if (queued) this.put(queued, done.recording?.blocks ? done.recording : null, done.why ?? "");
  }

  /**
   * The same for a session that the server knows nothing of any more: it was stopped meanwhile.
   * @param {(string | undefined)[]} known prompts that the server knows of
   */
  settleLost(known) {
    const queued = isOpening() ? null : takeLost(known, this.strip.node);
    if (queued?.soFar) this.put(queued, queued.soFar, text("live.serverGone"));
  }

  /**
   * @param {import("./live_recording.js").Queued} queued
   * @param {LiveRecording | null} recording null: nothing was made
   * @param {string} why the session ended, if nobody asked for that
   */
  put(queued, recording, why) {
    const { inputs, view } = this.strip;
    if (why) view.complain(why);
    const problem = recording ? recordingProblem(inputs, queued) : "";
    if (!recording || problem) {
      inputs.write("live", false); // or the next run would begin another one
      if (problem) this.offer(problem, recording);
      return;
    }
    writeRecording(inputs, recording);
    const made = text("live.recorded", { count: recording.blocks });
    toast("success", made, text("live.recordedDetail"), LIFE);
  }

  /**
   * Show a recording as text.
   * @param {string} problem why it is not in the graph
   * @param {LiveRecording | null} [recording]
   */
  offer(problem, recording = this.recording) {
    if (!recording) return;
    const { seed, takes, blocks } = recording;
    const values = { count: blocks, seed, takes: takes || text("live.noTakes") };
    openText(text("live.recording"), [problem, text("live.values", values)], textOf(recording));
  }
}

/**
 * An entry of the menu, with what it makes if that is known.
 * @param {string} act
 * @param {Forecast | null} forecast
 */
function withCost(act, forecast) {
  const cost = madeText(forecast);
  return cost ? text("does", { act, cost }) : act;
}
