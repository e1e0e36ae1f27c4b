// What the strips have the server do: stop a run, keep blocks, steer a live session.
import { askServer, toast } from "./frontend.js";
import { strips } from "./runs_known.js";
import { text } from "./words.js";

const LIFE = { done: 6000, failed: 8000 }; // ms of a message

/**
 * Ask the server to end a run after the block it is making.
 * @param {Run} run
 */
export async function stop(run) {
  /** @param {boolean} stopping */
  const show = (stopping) => {
    run.stopping = stopping;
    for (const strip of strips.values()) if (strip.run === run) strip.refresh();
  };
  show(true);
  if (!(await post("/sdvg/stop", { node: run.info.node }, text("stop")))) show(false);
}

/**
 * Have the server write the blocks of a lock to its disk, where a restart leaves them; whether it did.
 * @param {string} lock
 * @param {string} blocks their names
 * @param {boolean} silent
 */
export async function keepBlocks(lock, blocks, silent) {
  const summary = text("lock", { blocks });
  const answer = await post("/sdvg/keep", { blocks: lock }, summary);
  if (!answer || silent) return Boolean(answer);
  const megabytes = (answer.bytes / 1e6).toFixed(answer.bytes < 1e6 ? 2 : 0);
  toast("info", summary, text("onDisk", { megabytes }), LIFE.done);
  return true;
}

/**
 * Ask something of a live session.
 * @param {Run} run
 * @param {object} act
 * @returns {Promise<Steered>}
 */
export async function steer({ run }, act) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ run, ...act });
  const answer = await askServer("/sdvg/steer", { method: "POST", headers, body });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  return { error: error ?? `${answer.status} ${answer.statusText}`, status: answer.status };
}

/**
 * What the server answers; null if it refuses, which is then shown.
 * @param {string} path
 * @param {object} body
 * @param {string} summary
 */
async function post(path, body, summary) {
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await askServer(path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return await answer.json();
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `${answer.status} ${answer.statusText}`);
  } catch (error) {
    toast("error", summary, /** @type {Error} */ (error).message, LIFE.failed);
    return null;
  }
}
