// What the server has said of runs so far: each of its answers has only what is new.

/** @typedef {RunInfo & { events: BlockEvent[], done: RunDone | null }} RunAccount */

/**
 * An answer to /sdvg/runs. `after`: the change that it was asked from; 0: it has everything. `newest`: the last change, by its number.
 * `known`: all runs that the server has. `runs`: those that changed, of which the first events are the `same`.
 * @typedef {object} RunsAnswer
 * @property {number} after
 * @property {number} newest
 * @property {string[]} known
 * @property {(Partial<RunAccount> & { run: string, events: BlockEvent[], same: number })[]} runs
 */

export class Account {
  constructor() {
    this.newest = 0;
    /** @type {Map<string, RunAccount>} */
    this.runs = new Map();
  }

  /**
   * Take an answer in, unless a newer one came before it; returns all runs that the server has, oldest first.
   * @param {RunsAnswer} answer
   * @returns {RunAccount[]}
   */
  take({ after, newest, known, runs }) {
    if (!after) this.runs.clear();
    if (!after || newest >= this.newest) {
      this.newest = newest;
      for (const { same, ...news } of runs) {
        const before = this.runs.get(news.run);
        const events = [...(before?.events ?? []).slice(0, same), ...news.events];
        this.runs.set(
          news.run,
          /** @type {RunAccount} */ ({ done: null, ...before, ...news, events }),
        );
      }
    }
    for (const run of this.runs.keys()) if (!known.includes(run)) this.runs.delete(run);
    const all = [...this.runs.values()].map((run) => ({ ...run, events: [...run.events] })); // which the page changes
    return all.sort((a, b) => known.indexOf(a.run) - known.indexOf(b.run));
  }
}
