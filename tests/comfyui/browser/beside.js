// What ComfyUI's page does beside the strip: its hotkeys, while one of our buttons has the focus.
//
//     NODE_PATH=folder/with/playwright-core node beside.js OPTIONS        (see page.js)
const { build, main, quiet } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a big yellow ball runs right\n4: a small red ring rests on grass\n7: a large blue ball rests on sand";
const BUTTONS = [".sdvg-shot-title", '.sdvg-squares [data-number="2"]', ".sdvg-more", ".sdvg-shots-button", ".sdvg-shot-take"];

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await quiet(page);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await quiet(page, 500);
  const keys = await pressKeys(page);
  return { keys };
});

/** Change a widget as a hand would, and let ComfyUI notice. */
function write(page, type, name, value) {
  return page.evaluate(([of, of_widget, news]) => {
    const widget = window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === of_widget);
    widget.value = news;
    widget.callback?.(news);
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
  }, [type, name, value]);
}

/** Which keys reach the page from each button, while the sampler is selected; and whether the sampler and the sidebar are as they were. */
async function pressKeys(page) {
  await page.evaluate((type) => {
    window.heard = [];
    window.addEventListener("keydown", ({ key }) => window.heard.push(key));
    const { graph, canvas } = window.app;
    canvas.selectItems([graph.nodes.find((node) => node.type === type)]);
  }, SAMPLER);
  const heard = {};
  for (const button of BUTTONS) {
    if (!(await page.locator(button).count())) continue; // it went with the sampler
    await page.evaluate(() => window.heard.splice(0));
    await page.locator(button).first().focus();
    for (const key of ["r", "q", "5", ".", "Delete", "Backspace", "Control+z", "Tab"]) {
      await page.keyboard.press(key);
      if (await page.locator(button).count()) await page.locator(button).first().focus();
    }
    heard[button] = await page.evaluate(() => [...window.heard]);
  }
  await quiet(page);
  const left = await page.evaluate((type) => ({
    samplers: window.app.graph.nodes.filter((node) => node.type === type).length,
    sidebar: window.app.extensionManager.sidebarTab?.activeSidebarTabId ?? null,
  }), SAMPLER);
  return { heard, left };
}
