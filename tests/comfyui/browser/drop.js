// Files of workflows dropped on the canvas one after the other, as from a file manager, and some of them run; then blueprints.
//
//     NODE_PATH=folder/with/playwright-core node drop.js OPTIONS        (see page.js)
//
// Further options: `files`: the workflows; `runs`: those of them to run; `blueprints`: files of subgraphs.
const fs = require("node:fs");
const path = require("node:path");
const { installContrast } = require("./contrast.js");
const { placed, readable, resized } = require("./layout.js");
const { drop, main, press, quiet, run } = require("./page.js");

main(async (page, options) => {
  const dropped = [];
  const ran = {};
  await installContrast(page);
  for (const name of options.files) {
    await open(page, name);
    const seen = { ...(await page.evaluate(readable)), ...(await page.evaluate(placed)), resized: await grown(page, name) };
    dropped.push({ ...(await page.evaluate(opened)), ...seen, prompt: await page.evaluate(sent) });
    if (options.runs.includes(name)) ran[path.basename(name, ".json")] = { ...(await shownRun(page)), resized: await grown(page, name) };
  }
  const blueprints = {};
  for (const file of options.blueprints) {
    const name = path.basename(file, ".json");
    await page.evaluate(() => window.app.graph.clear());
    await page.evaluate(drop, { name: path.basename(file), text: fs.readFileSync(file, "utf8") });
    await page.waitForFunction((title) => window.app.graph.nodes[0]?.title === title, name);
    await quiet(page);
    blueprints[name] = { outputs: await page.evaluate(outputs), prompt: await page.evaluate(sent) };
  }
  return { dropped, ran, blueprints, tall: await openTall(page, options.files) };
});

/** Drop the file of a workflow. */
async function open(page, name) {
  await page.evaluate(() => window.app.graph.clear()); // else the node that is waited for is the last one's
  await page.evaluate(drop, { name: path.basename(name), text: fs.readFileSync(name, "utf8") });
  await page.waitForFunction(() => window.app.graph.nodes.some((node) => node.type === "SaveVideo"));
  await quiet(page);
}

/** The nodes that are not as large as the workflow's file says; a file in API form says nothing. */
async function grown(page, name) {
  const { nodes = null } = JSON.parse(fs.readFileSync(name, "utf8"));
  return nodes && page.evaluate(resized, nodes);
}

/** Where the nodes lie in Nodes 2.0, which draws them taller; what is far away it measures as it comes into sight. */
async function openTall(page, files) {
  await page.setViewportSize({ width: 2600, height: 1600 });
  await page.evaluate(() => window.app.extensionManager.setting.set("Comfy.VueNodes.Enabled", true));
  const seen = [];
  for (const name of files) {
    await open(page, name);
    seen.push({ ...(await page.evaluate(placed)), resized: await grown(page, name) });
  }
  return seen;
}

function outputs() {
  return window.app.graph.nodes[0].outputs.map((output) => output.name);
}

async function shownRun(page) {
  await page.evaluate(saveElsewhere);
  await run(page, press);
  await page.waitForFunction(() => window.app.nodeOutputs[window.app.graph.nodes.find((node) => node.type === "SaveVideo").id]);
  await quiet(page);
  const seen = await page.evaluate(shown);
  await page.evaluate(lookAtVideo);
  await page.waitForSelector("video");
  await page.waitForFunction(() => document.querySelector("video").duration > 0);
  await quiet(page, 1000); // the nodes grow
  return { ...seen, ...(await page.evaluate(placed)) };
}

/** Save under a name of its own: ComfyUI tells nothing of a video that another page has saved with the same settings. */
function saveElsewhere() {
  const [name] = window.app.graph.nodes.find((node) => node.type === "SaveVideo").widgets;
  name.value += `_${Date.now()}`;
}

/** A node out of sight has no video. */
function lookAtVideo() {
  const { graph, canvas } = window.app;
  canvas.centerOnNode(graph.nodes.find((node) => node.type === "SaveVideo"));
}

async function sent() {
  return (await window.app.graphToPrompt()).output;
}

function opened() {
  const known = window.LiteGraph.registered_node_types;
  const types = window.app.graph.nodes.map((node) => node.type);
  const sampler = "SDVGSpeculativeSampler";
  // Its name is the page's affair: a word in the schema is taken for one.
  const control = (node) => node.widgets.find((widget) => widget.name === "seed").linkedWidgets[0].value;
  return {
    types,
    seeds: window.app.graph.nodes.filter((node) => node.type === sampler).map(control),
    asksForText: window.app.graph.nodes.some((node) => node.type === sampler && !node.widgets.find(({ name }) => name === "prompt").hidden),
    newSeed: control(window.LiteGraph.createNode(sampler)),
    missing: types.filter((type) => !(type in known)),
    told: [...document.querySelectorAll(".p-toast-message, [data-testid=toast]")].map((toast) => toast.innerText),
  };
}

function shown() {
  const { graph, nodeOutputs } = window.app;
  // Of strips out of sight too, which the page takes out of the document.
  const strips = graph.nodes.flatMap(({ widgets = [] }) => widgets.filter(({ name }) => name === "route")).map(({ element }) => element);
  return {
    file: nodeOutputs[graph.nodes.find((node) => node.type === "SaveVideo").id].images[0],
    outcomes: strips.flatMap((strip) => [...strip.querySelectorAll(".sdvg-squares button")]).map((square) => square.dataset.outcome ?? null),
  };
}
