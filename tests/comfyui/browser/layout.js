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

/** The nodes that lie in no group, and the pairs of which one lies on the other, as they are drawn now. */
function placed() {
  const { graph, canvas } = window.app;
  const head = window.LiteGraph.NODE_TITLE_HEIGHT;
  const boxOf = (node) => {
    const element = document.querySelector(`[data-node-id="${node.id}"]`);
    const height = element ? element.getBoundingClientRect().height / canvas.ds.scale - head : node.size[1];
    const [left, top] = node.pos;
    return { left, top: top - head, right: left + node.size[0], bottom: top + height };
  };
  const inside = ({ left, top, right, bottom }) => graph.groups.some(({ pos, size }) =>
    pos[0] <= left && pos[1] <= top && right <= pos[0] + size[0] && bottom <= pos[1] + size[1]);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const boxes = graph.nodes.map((node) => ({ type: node.type, ...boxOf(node) }));
  return {
    astray: boxes.filter((box) => !inside(box)),
    overlaps: boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b)).map((b) => [a, b])),
  };
}

/** Of each node that has not the size its file gives it: its type, that size and its own. */
function resized(saved) {
  const sizes = new Map(saved.map(({ id, size }) => [String(id), size]));
  const isAs = ([width, height], [other, high]) => Math.abs(width - other) < 1 && Math.abs(height - high) < 1;
  const nodes = window.app.graph.nodes.filter((node) => !isAs(node.size, sizes.get(String(node.id))));
  return nodes.map((node) => [node.type, sizes.get(String(node.id)), [...node.size]]);
}

module.exports = { placed, readable, resized };
