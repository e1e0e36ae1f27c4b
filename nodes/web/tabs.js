// Which tabs of the page a run belongs to. Node ids do not tell: every copy of a template has the same.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

const KEPT = "sdvg.queued"; // where the page finds it again after it was loaded anew
const MOST = 64;

const tabs = new Map(); // prompt -> the workflows that it belongs to

function openWorkflow() {
  return app.extensionManager?.workflow?.activeWorkflow;
}

function paths() {
  return new Map(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
}

/** Whether a prompt was queued from the workflow that is open, or was found to be its own. */
export function fromHere(prompt) {
  const open = openWorkflow();
  return tabs.has(prompt) ? tabs.get(prompt).has(open) : Boolean(open) && paths().get(prompt) === open.path;
}

/** Whether it is another one's. */
export function fromElsewhere(prompt) {
  return tabs.has(prompt) && !fromHere(prompt);
}

export function claim(prompt, workflow = openWorkflow()) {
  tabs.set(prompt, (tabs.get(prompt) ?? new Set()).add(workflow));
  const others = [...paths()].filter(([one]) => one !== prompt); // what is claimed again is the newest
  sessionStorage.setItem(KEPT, JSON.stringify([...others, [prompt, workflow?.path]].slice(-MOST)));
}

const { queuePrompt } = api;
api.queuePrompt = async function (...sent) {
  const workflow = openWorkflow();
  api.dispatchCustomEvent("sdvg.queueing");
  let refused;
  try {
    const answer = await queuePrompt.apply(this, sent);
    refused = answer.node_errors;
    claim(answer.prompt_id, workflow);
    return answer;
  } catch (error) {
    refused = error.response?.node_errors;
    throw error;
  } finally {
    api.dispatchCustomEvent("sdvg.refused", refused ?? {});
  }
};
