// What the Quality Router shows when one policy after the other is chosen on it, each with its first number changed.
//
//     NODE_PATH=folder/with/playwright-core node policies.js OPTIONS        (see page.js)
//
// Further options: `policies`: their names, in order; `quantile`: what the page calls that.
const { main, quiet } = require("./page.js");

main(async (page, options) => {
  await page.evaluate(make);
  const shown = [];
  for (const name of options.policies) {
    await page.evaluate(choose, name);
    await quiet(page);
    shown.push({ ...(await page.evaluate(look)), changed: await page.evaluate(spoil) });
  }
  await page.evaluate(choose, "reward");
  const kept = await page.evaluate(meddle);
  const quantile = await seekQuantile(page, options.quantile);
  const saved = {};
  for (const tau of [-3, 0.5]) saved[tau] = await reopen(page, tau, options.vue);
  const older = {};
  for (const [name, router] of Object.entries(options.older)) older[name] = await openSaved(page, router);
  return { shown, kept, quantile, saved, older };
});

function make() {
  const { app, LiteGraph } = window;
  app.graph.clear();
  const node = LiteGraph.createNode("SDVGQualityRouter");
  app.graph.add(node);
  node.pos = [0, 0];
  node.setSize([400, node.computeSize()[1]]);
  app.canvas.ds.scale = 1;
  app.canvas.ds.offset = [150, 150];
}

function choose(name) {
  const [node] = window.app.graph.nodes;
  const policy = node.widgets.find((widget) => widget.name === "policy");
  policy.value = name;
  policy.callback?.(name);
  window.app.canvas.setDirty(true, true);
}

function look() {
  const [node] = window.app.graph.nodes;
  const labels = [...document.querySelectorAll(`[data-node-id="${node.id}"] *`)]
    .filter((element) => !element.children.length && element.checkVisibility())
    .map((element) => element.textContent.trim());
  const own = node.widgets.filter((widget) => widget.name.startsWith("policy."));
  const words = own.map((widget) => [widget.name, widget.label, widget.tooltip ?? null]);
  return { values: own.map((widget) => widget.value), words, labels, height: node.size[1], needed: node.computeSize()[1] };
}

/** Change the first number and the target's steps, as a user may before choosing another policy, then a widget that is none of the policy's. */
function spoil() {
  const [node] = window.app.graph.nodes;
  const first = node.widgets.find((widget) => widget.name.startsWith("policy."));
  const was = first.value;
  const other = node.widgets.find((widget) => widget.name === "device");
  first.value = was + 0.2;
  const steps = node.widgets.find((widget) => widget.name === "policy.target_steps");
  if (steps) steps.value += 1;
  other.callback?.(other.value);
  return first.value !== was;
}

/** Change tau, then a widget that is none of its policy's. */
function meddle() {
  const [node] = window.app.graph.nodes;
  const names = ["policy.tau", "policy.target_steps", "device"];
  const [tau, steps, other] = names.map((name) => node.widgets.find((widget) => widget.name === name));
  const before = tau.value;
  tau.value = -1.5;
  other.callback?.(other.value);
  return { tau: [before, tau.value], target_steps: steps?.value };
}

/** Whether the quantile has a row with each score of a block, and after the last was saved and opened; then what is sent. */
async function seekQuantile(page, label) {
  const rows = {};
  await page.evaluate(() => {
    const [node] = window.app.graph.nodes;
    node.showAdvanced = true;
  });
  for (const name of ["min", "quantile", "mean", "reopened", "quantile, reopened"]) {
    const to = { reopened: null, "quantile, reopened": "quantile" }[name];
    await page.evaluate(aggregate, to === undefined ? name : to);
    if (name.endsWith("reopened")) {
      await page.evaluate(async () => window.app.loadGraphData(JSON.parse(JSON.stringify(window.app.graph.serialize()))));
      await page.evaluate(() => {
        window.app.graph.nodes[0].showAdvanced = true;
      });
    }
    await quiet(page);
    rows[name] = await page.evaluate(rowOfQuantile, label);
  }
  await page.evaluate(aggregate, "min");
  await quiet(page);
  const { inputs } = await page.evaluate(async () => Object.values((await window.app.graphToPrompt()).output)[0]);
  return { rows, sent: [inputs["policy.aggregation"], inputs["policy.quantile"]] };
}

/** Open the node with widgets and sockets as some version saved them, one perhaps wired; what is sent, and what is said. */
async function openSaved(page, router) {
  await page.evaluate(async ({ widgets, sockets, wired, giver }) => {
    const { app } = window;
    const saved = JSON.parse(JSON.stringify(app.graph.serialize()));
    const node = saved.nodes.find(({ type }) => type === "SDVGQualityRouter");
    node.widgets_values = widgets;
    const socket = (name) => ({ name, type: "INT", widget: { name }, link: null });
    node.inputs = sockets.map((name) => (name === "scorer" ? { name, type: "SDVG_SCORER", link: null } : socket(name)));
    saved.nodes = [node];
    saved.links = [];
    if (wired) {
      const slot = sockets.indexOf(wired);
      node.inputs[slot].link = 1;
      saved.links.push([1, Number(giver), 0, node.id, slot, "INT"]);
      const outputs = [{ name: "INT", type: "INT", links: [1] }];
      saved.nodes.push({ id: Number(giver), type: "PrimitiveInt", pos: [0, 0], size: [200, 90], outputs, widgets_values: [1, "fixed"] });
    }
    window.said = [];
    const { toast } = app.extensionManager;
    const { add } = toast;
    toast.add = (message) => window.said.push(message.detail);
    try {
      await app.loadGraphData(saved);
    } finally {
      toast.add = add;
    }
  }, router);
  await quiet(page);
  return page.evaluate(async () => {
    const { output } = await window.app.graphToPrompt();
    const node = window.app.graph.nodes.find(({ type }) => type === "SDVGQualityRouter");
    const sockets = node.inputs.map(({ name }) => name);
    return { inputs: output[node.id].inputs, said: window.said, sockets };
  });
}

function aggregate(to) {
  const [node] = window.app.graph.nodes;
  const widget = node.widgets.find(({ name }) => name === "policy.aggregation");
  if (to === null) return;
  widget.value = to;
  widget.callback?.(to);
}

function rowOfQuantile(label) {
  const [node] = window.app.graph.nodes;
  const element = document.querySelector(`[data-node-id="${node.id}"]`);
  if (!element) return node.isWidgetVisible(node.widgets.find(({ name }) => name === "policy.quantile"));
  return [...element.querySelectorAll("*")].some((one) => !one.children.length && one.textContent.trim() === label && one.checkVisibility());
}

/** Open the node as if it had been saved with this tau. */
async function reopen(page, tau, vue) {
  await page.evaluate(async (value) => {
    const { app } = window;
    const saved = JSON.parse(JSON.stringify(app.graph.serialize()));
    saved.nodes[0].widgets_values[2] = value;
    await app.loadGraphData(saved);
  }, tau);
  if (vue) await page.waitForSelector("[data-node-id] [role=slider]");
  await quiet(page);
  return page.evaluate(async () => {
    const [node] = window.app.graph.nodes;
    const widget = node.widgets.find(({ name }) => name === "policy.tau");
    const slider = document.querySelector(`[data-node-id="${node.id}"] [role="slider"]`);
    const drawn = slider && [Number(slider.getAttribute("aria-valuemin")), Number(slider.getAttribute("aria-valuemax"))];
    const { output } = await window.app.graphToPrompt();
    return { sent: output[node.id].inputs["policy.tau"], range: [widget.options.min, widget.options.max], drawn };
  });
}
