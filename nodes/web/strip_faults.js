// What went wrong with a prompt, shown at the samplers that it concerns.
import { PREFIX, allNodes, fromElsewhere, fromHere, nodeOf } from "./frontend.js";
import { nameQueued, noteQueued, takeQueued } from "./live_recording.js";
import { ask } from "./runs_asked.js";
import { strips } from "./runs_known.js";
import { text } from "./words.js";

/**
 * Show it at the sampler that it concerns; what concerns another node of ours, at every sampler.
 * @param {string} id
 * @param {string} type
 * @param {string} sentence
 */
function complain(id, type, sentence) {
  if (!type.startsWith(PREFIX)) return;
  const node = nodeOf(id);
  const own = node && strips.get(node);
  for (const strip of own ? [own] : strips.values()) strip.view.complain(sentence);
  ask();
}

/**
 * What the server refused to queue; null as something is about to be queued.
 * @param {NodeErrors | null} refused
 * @param {string} [prompt]
 */
export function onRefused(refused, prompt) {
  if (refused) nameQueued(prompt);
  else {
    noteQueued([...strips.values()].map(({ inputs }) => inputs));
    for (const { view } of strips.values()) view.complain("");
  }
  for (const [id, { class_type: type, errors }] of Object.entries(refused ?? {})) {
    const [error] = errors;
    if (!error) continue;
    const { type: kind, message, details } = error;
    const isOurs = kind.startsWith("exception");
    complain(id, type, isOurs ? details : (missing(id, error) ?? `${message}: ${details}`));
  }
}

/**
 * Whom a missing input lacks, if that is a node of ours that is bypassed.
 * @param {string} id
 * @param {NodeError} error
 */
function missing(id, { type, extra_info: info }) {
  const BYPASSED = 4;
  if (type !== "required_input_missing") return undefined;
  const ours = [...allNodes()].filter((node) => node.comfyClass?.startsWith(PREFIX));
  const bypassed = ours.find(({ mode }) => mode === BYPASSED);
  const name = bypassed?.title ?? bypassed?.type ?? "";
  return (
    bypassed &&
    text("bypassed", { name, input: info?.input_name ?? "", node: nodeOf(id)?.title ?? id })
  );
}

/**
 * A prompt ended by a fault: a session in it that never began, or made nothing, is not begun again by the next run.
 * @param {{ prompt_id: string }} ended
 */
export function onBroken({ prompt_id: prompt }) {
  for (const [node, { inputs, live }] of strips) {
    if (!fromHere(prompt) || !takeQueued(prompt, node)) continue;
    inputs.write("live", false);
    live?.forgetQueued();
  }
}

/** @param {{ prompt_id: string, node_id: string, node_type: string, exception_message: string }} error */
export function onError({
  prompt_id: prompt,
  node_id: id,
  node_type: type,
  exception_message: message,
}) {
  if (!fromElsewhere(prompt)) complain(id, type, message);
}
