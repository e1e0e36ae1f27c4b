// Make the pictures of README.md and of the help pages: the whole workflow after a run, and every node by itself.
//
//     NODE_PATH=folder/with/playwright-core node pictures.js OPTIONS        (see page.js; take_pictures.py calls it)
//
// Further options: `overview`: where the whole picture goes; `nodes`: the folder for those of single nodes.
const path = require("node:path");
const { build, main, quiet, run } = require("./page.js");

const SCALE = 0.82;
const MARGIN = 10;

main(async (page, options) => {
  await page.setViewportSize({ width: 1560, height: 1020 });
  await page.evaluate(build, options);
  await page.evaluate(widen);
  await page.evaluate(showFrom, { scale: SCALE, corner: [74, 140] });
  await run(page);
  await page.waitForFunction(() => document.querySelector("video")?.readyState >= 2);
  await quiet(page, 3000); // the report's picture loads
  const notice = page.getByText("Job completed").first();
  await notice.waitFor({ timeout: 10000 }).catch(() => {});
  await notice.waitFor({ state: "hidden", timeout: 60000 });
  await page.mouse.move(5, 600);
  if (options.overview) await page.screenshot({ path: options.overview });
  if (options.nodes) {
    await page.setViewportSize({ width: 1400, height: 1300 }); // the sampler is tall
    await page.evaluate(spreadOut);
    for (const type of await page.evaluate(types)) {
      await page.evaluate(alone, type);
      await quiet(page, 700);
      const clip = await page.evaluate(bounds, { type, margin: MARGIN });
      await page.screenshot({ path: path.join(options.nodes, `${type}.png`), clip });
    }
  }
  return {};
});

/** Give the report room, so that its picture can be read. */
function widen() {
  const { app } = window;
  app.graph.nodes.find((node) => node.type === "SDVGRouteReport").setSize([640, 680]);
}

/** Move the canvas so that its point (20, 60), where the workflow begins, is at `corner` of the window. */
function showFrom({ scale, corner }) {
  const { ds } = window.app.canvas;
  ds.scale = scale;
  ds.offset = [corner[0] / scale - 20, corner[1] / scale - 60];
  window.app.canvas.setDirty(true, true);
}

/** Add the nodes that the workflow does without. */
function spreadOut() {
  const { app, LiteGraph } = window;
  for (const type of ["SDVGDrafterLoader", "SDVGTargetLoader", "SDVGPrompt", "SDVGPromptSchedule", "SDVGStart"]) {
    const node = LiteGraph.createNode(type);
    app.graph.add(node);
    node.setSize([400, node.computeSize()[1]]);
    const file = node.widgets.find((widget) => widget.name === "file");
    if (file) file.value = file.options.values.find((name) => name.includes(type.includes("Target") ? "krea" : "forcing"));
  }
  app.graph.nodes.forEach((node, i) => (node.pos = [3000 * i, 0]));
}

function types() {
  return window.app.graph.nodes.map((node) => node.type).filter((type) => type.startsWith("SDVG"));
}

/** Look at one node only. */
function alone(type) {
  const { app } = window;
  const node = app.graph.nodes.find((n) => n.type === type);
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [200 - node.pos[0], 120 - node.pos[1]];
  app.canvas.setDirty(true, true);
}

function bounds({ type, margin }) {
  const node = window.app.graph.nodes.find((n) => n.type === type);
  const element = document.querySelector(`[data-node-id="${node.id}"]`);
  const { x, y, width, height } = element
    ? element.getBoundingClientRect()
    : { x: 200, y: 90, width: node.size[0], height: node.size[1] + 30 };
  return { x: x - margin, y: y - margin, width: width + 2 * margin, height: height + 2 * margin };
}
