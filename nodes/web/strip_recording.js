// What a strip does with the recording of a live session: it goes into the graph, and the next run finishes it.
import { toast } from "./frontend.js";
import {
  holdsRecording,
  recordingProblem,
  takeQueued,
  textOf,
  writeRecording,
} from "./live_recording.js";
import { openText } from "./strip_dialog.js";
import { madeText } from "./strip_sentences.js";
import { text } from "./words.js";

const LIFE = 8000; // ms of a message

export class StripRecording {
  /** @param {import("./strip.js").Strip} strip */
  constructor(strip) {
    this.strip = strip;
  }

  /** The newest recording that the server has. */
  get recording() {
    const runs = [...this.strip.acts.others(), this.strip.run];
    return runs.findLast((run) => run?.done?.recording?.blocks)?.done?.recording ?? null;
  }

  /** Whether the strip shows its film, and the graph holds it: it was made as it is asked for, though another route makes it again. */
  get isShown() {
    const { run, inputs, acts } = this.strip;
    const session = acts.others().findLast(({ info }) => info.live);
    const recording = session?.done?.recording;
    const isItsFilm = run?.info.prompt === session?.info.prompt;
    return Boolean(recording?.blocks && isItsFilm && holdsRecording(inputs, recording));
  }

  /**
   * What can be done with it.
   * @returns {MenuItem[]}
   */
  items() {
    const { recording, strip } = this;
    if (!recording) return [];
    /** @type {MenuItem[]} */
    const items = [{ text: text("live.asText"), act: () => this.offer("") }];
    const isInGraph = holdsRecording(strip.inputs, recording);
    const cost = madeText(strip.forecast);
    const finish = cost ? text("does", { act: text("live.finish"), cost }) : text("live.finish");
    if (isInGraph) items.unshift({ text: finish, act: () => void strip.acts.queue() });
    return items;
  }

  /**
   * A session is over: once, write its recording into the graph that it was queued from, if that is still as it was then.
   * @param {Run} run
   */
  settle({ info, done }) {
    const { node, inputs, view } = this.strip;
    const queued = done && takeQueued(info.prompt, node);
    if (!queued) return;
    if (done.why) view.complain(done.why);
    if (!done.recording?.blocks) {
      inputs.write("live", false);
      return;
    }
    const problem = recordingProblem(inputs, queued);
    if (problem) {
      inputs.write("live", false); // or the next run would begin another one
      this.offer(problem);
      return;
    }
    writeRecording(inputs, done.recording);
    const { blocks } = done.recording;
    toast("success", text("live.recorded", { count: blocks }), text("live.recordedDetail"), LIFE);
  }

  /**
   * Show the recording as text.
   * @param {string} problem why it is not in the graph
   */
  offer(problem) {
    const { recording } = this;
    if (!recording) return;
    const { seed, takes, blocks } = recording;
    const values = { count: blocks, seed, takes: takes || text("live.noTakes") };
    openText(text("live.recording"), [problem, text("live.values", values)], textOf(recording));
  }
}
