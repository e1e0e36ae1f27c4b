// What nodes tell: errors on the strip, before and during a run, and the prompt that Pocket Models shows instead.
//
//     NODE_PATH=folder/with/playwright-core node told.js OPTIONS        (see page.js)
const { installContrast } = require("./contrast.js");
const { build, main, quiet, reload, run } = require("./page.js");

const [SAMPLER, ROUTER, POCKET] = ["SDVGSpeculativeSampler", "SDVGQualityRouter", "SDVGPocketModels"];

main(async (page, options) => {
  await page.evaluate(build, options);
  await quiet(page, 1000);
  await installContrast(page);
  const refused = [];
  for (const [type, name, wrong, right] of [
    [SAMPLER, "width", 72, 64], [SAMPLER, "takes", "12:x", ""], [ROUTER, "policy.script", "raxr", options.script], [POCKET, "strict", true, false],
  ]) {
    await set(page, type, name, wrong);
    if (type === POCKET) await set(page, POCKET, "prompt", "two whales sing over the sea");
    await page.evaluate(() => window.app.queuePrompt(0, 1).catch(() => {}));
    await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent).catch(() => {});
    refused.push(await error(page));
    if (options.pictures && name === "width") await pictures(page, options.pictures);
    await page.keyboard.press("Escape");
    await set(page, type, name, right);
  }
  await page.evaluate(wireControl, options.control);
  await page.evaluate(() => window.app.queuePrompt(0, 1));
  await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent.includes("control"));
  refused.push(await error(page));
  await page.evaluate(wireControl, null);
  const example = await chooseExample(page);
  await run(page);
  await quiet(page, 1500);
  const cleared = await error(page);
  const shown = await shownPrompt(page);
  const { workflow } = await page.evaluate(() => ({ workflow: JSON.parse(JSON.stringify(window.app.graph.serialize())) }));
  await page.evaluate((saved) => window.app.loadGraphData(saved), workflow);
  await quiet(page, 3000); // ComfyUI keeps a draft of it
  await reload(page);
  const reloaded = [];
  for (const times of [1, 2]) { // a page that was loaded anew may set its nodes up twice
    await page.waitForFunction(isToldAgain, POCKET).catch(() => {}); // then it is not there
    reloaded.push(await shownPrompt(page));
    if (times === 1) await page.evaluate((saved) => window.app.loadGraphData(saved), workflow);
  }
  return { example, refused, cleared, shown, reloaded };
});

/** Wire ComfyUI's control, with its default frames, between the prompt and the sampler; without `sizes`, take it out. */
function wireControl(sizes) {
  const { graph } = window.app;
  const [sampler, pocket, there] = ["SDVGSpeculativeSampler", "SDVGPocketModels", "WanVaceToVideo"]
    .map((type) => graph.nodes.find((node) => node.type === type));
  const positive = sampler.inputs.findIndex(({ name }) => name === "positive");
  if (!sizes) {
    pocket.connect(2, sampler, positive);
    return graph.remove(there);
  }
  const control = window.LiteGraph.createNode("WanVaceToVideo");
  graph.add(control);
  for (const [name, value] of Object.entries(sizes)) control.widgets.find((one) => one.name === name).value = value;
  for (const [slot, output] of [2, 2, 3].entries()) pocket.connect(output, control, slot);
  return control.connect(0, sampler, positive);
}

/** Take the third prompt of the list: what would be saved and sent then. Ends with the prompt as it was. */
async function chooseExample(page) {
  return page.evaluate(async (type) => {
    const node = window.app.graph.nodes.find((one) => one.type === type);
    const [prompt, list] = ["prompt", "examples"].map((name) => node.widgets.find((one) => one.name === name));
    const [before, chosen] = [prompt.value, list.options.values[2]];
    list.callback(chosen, window.app.canvas, node);
    const { inputs } = (await window.app.graphToPrompt()).output[node.id];
    const seen = { chosen, inputs, saved: node.serialize().widgets_values };
    prompt.value = before;
    return seen;
  }, POCKET);
}

/** Whether Pocket Models has its text, which the page asks the server for once it is loaded. */
function isToldAgain(type) {
  return window.app.graph.nodes.find((node) => node.type === type)?.widgets.some((widget) => widget.type === "progressText");
}

function set(page, type, name, value) {
  return page.evaluate(([of, widget, news]) => {
    window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === widget).value = news;
  }, [type, name, value]);
}

/** The sentence on the strip, and in each palette its contrast with the node. */
async function error(page) {
  const text = await page.evaluate(() => document.querySelector(".sdvg-error").textContent.trim());
  const contrast = {};
  for (const name of text ? ["light", "dark"] : []) {
    await page.evaluate((id) => window.app.extensionManager.setting.set("Comfy.ColorPalette", id), name);
    await quiet(page, 300);
    contrast[name] = await page.evaluate(() => {
      const colour = getComputedStyle(document.querySelector(".sdvg-error")).color;
      return window.contrastMeter()([[window.LiteGraph.NODE_DEFAULT_BGCOLOR, 1]], [colour, 1]);
    });
  }
  return { text, contrast };
}

async function pictures(page, folder) {
  for (const name of ["light", "dark"]) {
    await page.evaluate((id) => window.app.extensionManager.setting.set("Comfy.ColorPalette", id), name);
    await quiet(page, 500);
    await page.screenshot({ path: `${folder}-${name}.png` });
  }
}

function shownPrompt(page) {
  return page.evaluate((type) => {
    const { widgets } = window.app.graph.nodes.find((node) => node.type === type);
    return widgets.filter((widget) => widget.type === "progressText").map((widget) => String(widget.value));
  }, POCKET);
}
