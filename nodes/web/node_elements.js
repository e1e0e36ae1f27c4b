// Elements on nodes. Undoing a step, or opening another tab, makes all nodes anew. Where a new node has the id of an old one,
// Nodes 2.0 keeps the old one's element on the page: put the new one's there.
import { after } from "./dom.js";
import { allNodes, register } from "./frontend.js";

const SETTLED = 100; // ms, until the page has put new nodes in the place of old ones

/** @type {Map<GraphNode, HTMLElement>} */
const elements = new Map(); // node -> its element of ours
/** @type {[GraphNode, HTMLElement][]} */
const gone = []; // nodes that are no more, with their elements

/**
 * Add a widget that shows `element`, neither saved nor sent, which from now on is where its node is.
 * @param {GraphNode} node
 * @param {string} name
 * @param {string} type
 * @param {HTMLElement} element
 * @param {object} [options]
 */
export function addElement(node, name, type, element, options = {}) {
  // `options.serialize` keeps the widget out of the prompt, `serialize` out of the saved workflow.
  const widget = node.addDOMWidget(name, type, element, {
    serialize: false,
    hideOnZoom: false,
    ...options,
  });
  widget.serialize = false;
  elements.set(node, element);
  after(node, "onRemoved", () => leave(node));
  return widget;
}

/** @param {GraphNode} node */
function leave(node) {
  const element = elements.get(node);
  if (element) gone.push([node, element]);
  elements.delete(node);
}

function replace() {
  for (const [node, element] of gone.splice(0)) {
    const heir = [...elements].find(
      ([other]) => other.id === node.id && other.comfyClass === node.comfyClass,
    )?.[1];
    if (heir && element.isConnected && !heir.isConnected) element.replaceWith(heir);
  }
}

register({
  name: "sdvg.same_place",
  afterConfigureGraph() {
    const here = new Set(allNodes());
    for (const node of [...elements.keys()]) if (!here.has(node)) leave(node);
    setTimeout(replace, SETTLED);
  },
});
