// What can be read of an opened workflow, and whether its nodes lie where its groups are: functions for the page,
// which contrast.js has to be installed in.

/** The scale it opened at, and of each note the text that is hardest to read: contrast by WCAG 2.2, size in CSS pixels. */
function readable() {
  const contrast = window.contrastMeter();
  const note = window.app.graph.nodes.find((node) => node.type === "MarkdownNote");
  const measure = (element) => {
    const below = [];
    for (let one = element; one; one = one.parentElement) below.unshift([getComputedStyle(one).backgroundColor, 1]);
    // The classic canvas draws the node below our text; in Nodes 2.0 it is an element.
    if (!element.closest("[data-node-id]")) below.splice(0, below.length, [note.bgcolor, 1]);
    const { color, fontSize } = getComputedStyle(element);
    return { contrast: contrast(below, [color, 1]), pixels: parseFloat(fontSize), text: element.textContent };
  };
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  const texts = [...document.querySelectorAll(".comfy-markdown-content, .comfy-markdown-content *, .comfy-markdown *")];
  const hidden = [...document.querySelectorAll(".comfy-markdown-content")].map((one) => one.scrollHeight - one.clientHeight);
  return { scale: window.app.canvas.ds.scale, notes: texts.filter(own).map(measure), hidden };
}

/** The nodes that lie in no group, as they are drawn now. */
function astray() {
  const { graph, canvas } = window.app;
  const inside = (node) => {
    const element = document.querySelector(`[data-node-id="${node.id}"]`);
    const height = element ? element.getBoundingClientRect().height / canvas.ds.scale - window.LiteGraph.NODE_TITLE_HEIGHT : node.size[1];
    return graph.groups.some(({ pos, size }) =>
      pos[0] <= node.pos[0] && pos[1] <= node.pos[1] - window.LiteGraph.NODE_TITLE_HEIGHT &&
      node.pos[0] + node.size[0] <= pos[0] + size[0] && node.pos[1] + height <= pos[1] + size[1]);
  };
  return graph.nodes.filter((node) => !inside(node)).map((node) => [node.type, [...node.pos], [...node.size]]);
}

module.exports = { astray, readable };
