// Every part of the sampler that grows, opened in one renderer and closed in the other, in both orders.
const { quiet } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const PARTS = ["shots", "tau", "advanced", "film"];

/** The node's heights after each step, `[renderer, part, open, drawn, needed, saved, gap]`. */
async function switchRenderers(page) {
  const seen = [];
  const step = async (vue, open) => {
    await page.evaluate((on) => window.app.extensionManager.setting.set("Comfy.VueNodes.Enabled", on), vue);
    await quiet(page, 500);
    for (const part of PARTS) {
      await page.evaluate(turn, { type: SAMPLER, part, open });
      await quiet(page);
      seen.push([vue ? "nodes 2.0" : "canvas", part, open, ...(await page.evaluate(heights, SAMPLER))]);
    }
  };
  for (const vue of [true, false]) {
    await step(vue, true);
    await page.evaluate(() => window.app.loadGraphData(JSON.parse(JSON.stringify(window.app.graph.serialize())))); // new strips, open
    await step(!vue, false);
    await step(!vue, true);
    await step(vue, false);
  }
  return seen;
}

/** Open or close a part as its button or widget would. */
function turn({ type, part, open }) {
  const { app } = window;
  const node = (kind) => app.graph.nodes.find((one) => one.type === kind);
  const button = document.querySelector(".sdvg-shots-button");
  if (part === "shots" && (button.getAttribute("aria-expanded") === "true") !== open) button.click();
  if (part === "advanced" && Boolean(node(type).showAdvanced) !== open) node(type).toggleAdvanced();
  if (part === "film") app.extensionManager.setting.set("sdvg.strip.play", open);
  if (part !== "tau") return;
  const router = node("SDVGQualityRouter");
  const policy = router.widgets.find(({ name }) => name === "policy");
  policy.value = open ? "reward" : "fast";
  policy.callback?.(policy.value, app.canvas, router);
  const { changeTracker } = app.extensionManager.workflow.activeWorkflow;
  (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
}

/** Of the node as it is drawn, that it needs, and that is saved; and what is empty above its strip. */
function heights(type) {
  const node = window.app.graph.nodes.find((one) => one.type === type);
  const strip = node.widgets.find(({ name }) => name === "route");
  const needed = window.LiteGraph.vueNodesMode ? 0 : strip.y + strip.element.offsetHeight; // Nodes 2.0 tells the page alone
  const shown = node.widgets.filter((widget) => widget !== strip && !widget.hidden && (!widget.advanced || node.showAdvanced));
  const gap = window.LiteGraph.vueNodesMode ? 0 : strip.y - Math.max(...shown.map((widget) => widget.y + widget.computedHeight));
  return JSON.parse(JSON.stringify([node.size[1], needed, node.serialize().size[1], gap]));
}

module.exports = { switchRenderers };
