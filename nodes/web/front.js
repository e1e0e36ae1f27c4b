// What stands in front on our nodes: a list of prompts to try on Pocket Models. ComfyUI's canvas shows advanced inputs too unless their widgets say so themselves, and the
// sampler's box for the prompt is of use only if nothing upstream carries the prompt's text. What is hidden is saved and sent.
import { app } from "../../scripts/app.js";
import { PREFIX, inputSlot, locale, promptNode, setWidget } from "./common.js";

const WITH_TEXT = ["SDVGPrompt", "SDVGPocketModels"];

function tidy(node) {
  for (const widget of node.widgets ?? []) {
    if (!widget.options?.advanced || widget.name.includes(".")) continue; // option_widgets.js has those
    widget.advanced = true; // the node's menu offers to show them
    if (!window.LiteGraph.vueNodesMode) widget.hidden = !node.showAdvanced && node.inputs?.[inputSlot(node, widget.name)]?.link == null;
  }
  const prompt = node.widgets?.find(({ name }) => name === "prompt");
  if (!prompt || node.comfyClass !== "SDVGSpeculativeSampler") return;
  const told = WITH_TEXT.includes(promptNode(node)?.comfyClass) && !String(prompt.value).trim();
  prompt.hidden = prompt.options.hidden = told; // for the canvas, and for Nodes 2.0
}

/** A list whose choice is written into the prompt; it is neither saved nor sent. */
function offerExamples(node) {
  const prompt = node.widgets?.find(({ name }) => name === "prompt");
  const values = prompt && node.constructor.nodeData?.input?.required?.prompt?.[1]?.sdvg_examples;
  if (!values) return;
  const title = locale() === "zh" ? "选一个示例提示词" : "try a prompt";
  const list = node.addWidget("combo", "examples", values[0], (chosen) => setWidget(node, prompt, chosen), { values, serialize: false });
  list.label = title;
  list.serialize = false;
}

app.registerExtension({
  name: "sdvg.front",
  nodeCreated(node) {
    if (!node.comfyClass?.startsWith(PREFIX)) return;
    offerExamples(node);
    for (const name of ["onConnectionsChange", "onConfigure", "toggleAdvanced"]) {
      const before = node[name];
      node[name] = function (...news) {
        const answer = before?.apply(this, news);
        tidy(node);
        if (name === "toggleAdvanced") node.expandToFitContent?.();
        return answer;
      };
    }
    tidy(node);
    if (!window.LiteGraph.vueNodesMode) node.setSize([node.size[0], node.computeSize()[1]]); // Nodes 2.0 measures by itself
  },
  afterConfigureGraph() {
    for (const node of app.graph?.nodes ?? []) if (node.comfyClass?.startsWith(PREFIX)) tidy(node);
  },
});
