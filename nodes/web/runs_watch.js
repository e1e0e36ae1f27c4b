// Runs that another page queued: the server sends their events to that page alone, so this one asks while the server is at work.
const BETWEEN = 1000; // ms between two questions

/**
 * What the server is heard to do. `work` says that it has something to do, `own` that it works for this page, whose events come here.
 * @param {() => Promise<void>} ask
 */
export function watchOthers(ask) {
  const state = { isBusy: false, isOwn: false };
  let isWaiting = false;

  function wait() {
    if (isWaiting || !state.isBusy || state.isOwn) return;
    isWaiting = true;
    setTimeout(turn, BETWEEN);
  }

  async function turn() {
    if (state.isBusy && !state.isOwn && !document.hidden)
      await ask().catch((error) => console.warn("SDVG", error));
    isWaiting = false;
    wait();
  }

  return {
    /** @param {boolean} isBusy */
    work(isBusy) {
      state.isBusy = isBusy;
      wait();
    },
    /** @param {boolean} isOwn */
    own(isOwn) {
      state.isOwn = isOwn;
      wait();
    },
  };
}
