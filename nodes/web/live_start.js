// Whether a live session can begin: what it takes of the graph.
import { isLinked, promptNode, isWired } from "./frontend.js";
import { TEXT_OF } from "./node_inputs.js";
import { text } from "./words.js";

/** @typedef {import("./node_inputs.js").NodeInputs} NodeInputs */

/** @type {[string, (inputs: NodeInputs) => boolean][]} */
const PROBLEMS = [
  ["wired", ({ node }) => isWired(node, "live")],
  ["drafter", ({ node }) => !isLinked(node, ({ name }) => name === "drafter")],
  ["encoder", ({ node }) => !(String(promptNode(node)?.comfyClass) in TEXT_OF)],
  ["budget", (inputs) => inputs.routeSource()?.widget.value === "budget"],
  ["directions", (inputs) => /[^.\s]/.test(inputs.read("directions"))],
  ["locks", (inputs) => inputs.read("kept_blocks").trim() !== ""],
  ["until", (inputs) => Number(inputs.read("until_block")) > 0],
];

/**
 * Why no live session can begin; empty if one can.
 * @param {NodeInputs} inputs
 */
export function liveProblem(inputs) {
  const problem = PROBLEMS.find(([, isSo]) => isSo(inputs));
  return problem ? text(`live.cannot.${problem[0]}`) : "";
}
