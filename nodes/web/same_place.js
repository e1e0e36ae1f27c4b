// Undoing a step, or opening another tab, makes all nodes anew. Where a new node has the id of an old one, Nodes 2.0 keeps the
// old one's element on the page: put the new one's there.
import { app } from "../../scripts/app.js";
import { after, allNodes } from "./common.js";

const SETTLED = 100; // ms, until the page has put new nodes in the place of old ones

const elements = new Map(); // node -> its element of ours
const gone = []; // nodes that are no more, with their elements

/** Add a widget that shows `element`, neither saved nor sent, which from now on is where its node is. */
export function addElement(node, name, type, element, options = {}) {
  // `options.serialize` keeps the widget out of the prompt, `serialize` out of the saved workflow.
  const widget = node.addDOMWidget(name, type, element, { serialize: false, hideOnZoom: false, ...options });
  widget.serialize = false;
  elements.set(node, element);
  after(node, "onRemoved", () => leave(node));
  return widget;
}

function leave(node) {
  if (elements.has(node)) gone.push([node, elements.get(node)]);
  elements.delete(node);
}

function replace() {
  for (const [node, element] of gone.splice(0)) {
    const same = ([one]) => one.id === node.id && one.comfyClass === node.comfyClass;
    const [, heir] = [...elements].find(same) ?? [];
    if (heir && element.isConnected && !heir.isConnected) element.replaceWith(heir);
  }
}

app.registerExtension({
  name: "sdvg.same_place",
  afterConfigureGraph() {
    const here = new Set(allNodes());
    for (const node of [...elements.keys()]) if (!here.has(node)) leave(node);
    setTimeout(replace, SETTLED);
  },
});
