// What nodes tell: errors on the strip, before and during a run, and the prompt that Pocket Models shows instead.
const SAMPLER = "SDVGSpeculativeSampler";
const POCKET = "SDVGPocketModels";
const WHALES = "two whales sing over the sea"; // no prompt of the pocket world

/** What the strip says of each run that is refused, as it would be sent; the prompt is WHALES then, all else as before. */
async function refuse(page) {
  const refused = [];
  for (const [type, name, wrong, right] of [
    [SAMPLER, "width", 72, 64], [SAMPLER, "takes", "12:x", ""], [POCKET, "strict", true, false],
  ]) {
    await set(page, type, name, wrong);
    if (type === POCKET) await set(page, POCKET, "prompt", WHALES);
    await page.evaluate(() => window.app.queuePrompt(0, 1).catch(() => {}));
    await page.waitForFunction((before) => !["", before].includes(document.querySelector(".sdvg-error").textContent), refused.at(-1));
    refused.push(await error(page));
    await page.keyboard.press("Escape"); // ComfyUI's own dialogue
    await set(page, type, name, right);
  }
  await page.evaluate(wireControl, { width: 64, height: 64, length: 105 });
  await page.evaluate(() => window.app.queuePrompt(0, 1));
  await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent.includes("control"));
  refused.push(await error(page));
  await page.evaluate(wireControl, null);
  return refused;
}

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
    const before = prompt.value;
    const chosen = list.options.values[2];
    list.callback(chosen, window.app.canvas, node);
    const { inputs } = (await window.app.graphToPrompt()).output[node.id];
    const seen = { chosen, inputs, saved: node.serialize().widgets_values };
    prompt.value = before;
    return seen;
  }, POCKET);
}

function set(page, type, name, value) {
  return page.evaluate(([of, widget, news]) => {
    window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === widget).value = news;
  }, [type, name, value]);
}

function error(page) {
  return page.evaluate(() => document.querySelector(".sdvg-error").textContent);
}

/** Which prompt Pocket Models says that it shows. */
function shownPrompt(page) {
  return page.evaluate((type) => {
    const { widgets } = window.app.graph.nodes.find((node) => node.type === type);
    return widgets.filter((widget) => widget.type === "progressText").map((widget) => String(widget.value));
  }, POCKET);
}

module.exports = { chooseExample, error, refuse, shownPrompt };
