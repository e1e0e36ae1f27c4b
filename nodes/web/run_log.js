// One run as far as it is known: what it was asked for, its blocks in order, and how it ended.

export class RunLog {
  /** `info`: the event `sdvg.run`; `done`: the event `sdvg.done`, or null. */
  constructor(info, events = [], done = null) {
    const { run, of, directions = "", takes = "" } = info;
    Object.assign(this, { info, run, of, directions, takes, events, done });
    this.ended = false; // without a word of how
    this.stopping = false;
  }

  /** From the answer to /sdvg/runs. */
  static fromServer({ events, done, ...info }) {
    return new RunLog(info, events, done);
  }

  /** From a node's output, where the first and the last event of the run are one. */
  static fromOutput(all, told = {}) {
    const { run, node, workflow, of } = all.at(-1);
    const events = all.filter((event) => event.run === run); // with a list on an input, the output has several runs
    const info = { run, node, workflow, of, ...told };
    return new RunLog(info, events, { blocks: events.length, of: info.of, stopped: false, speed_up: null, ...told });
  }

  get going() {
    return !this.done && !this.ended;
  }

  get failed() {
    return Boolean(this.done ? this.done.failed : this.ended);
  }

  get seconds() {
    return (this.failed ? null : this.done?.seconds) ?? this.events.reduce((sum, event) => sum + event.seconds, 0);
  }

  /** What a block's event is to this run: its `next`, one that is `known`, or `lost`: others are missing before it. */
  place(event) {
    if (event.run !== this.run) return "lost";
    if (event.number === this.events.length + 1) return "next";
    return event.number <= this.events.length ? "known" : "lost";
  }

  /** Whether another account of what went on at this node is to be shown in place of this one. */
  yieldsTo(other) {
    if (other.run !== this.run) return this.going || other.going;
    return other.events.length > this.events.length || Boolean(other.done && !this.done);
  }
}
