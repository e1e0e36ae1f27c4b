// What ComfyUI's page does beside the strip: its hotkeys, while one of our buttons has the focus, and its steps to undo.
//
//     NODE_PATH=folder/with/playwright-core node beside.js OPTIONS        (see page.js)
const { build, main, quiet, run, write } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a big yellow ball runs right\n4: a small red ring rests on grass\n7: a large blue ball rests on sand";
const BUTTONS = [".sdvg-shot-title", '.sdvg-squares [data-number="2"]', ".sdvg-more", ".sdvg-shots-button", ".sdvg-shot-take"];

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await quiet(page);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await quiet(page, 500);
  const keys = await pressKeys(page);
  const ran = await runLow(page);
  const gap = await clickGap(page);
  const takes = await makeTakes(page);
  const controls = await narrow(page);
  return { keys, ran, gap, takes, controls };
});

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

/** The heights of a sampler that has no room to spare, its text line and the steps to undo: before a run, in it, and after it. */
async function runLow(page) {
  await page.evaluate((type) => {
    const node = window.app.graph.nodes.find((one) => one.type === type);
    node.setSize([400, window.LiteGraph.vueNodesMode ? 100 : node.computeSize()[1]]);
    const { graph } = window.app;
    graph.remove(graph.nodes.find((one) => one.type === "SaveVideo")); // 0.27's grows for its video in Nodes 2.0
    window.lines = 0;
    window.app.api.addEventListener("progress_text", () => { window.lines += 1; });
  }, SAMPLER);
  const look = () => page.evaluate((type) => {
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
    const node = window.app.graph.nodes.find((one) => one.type === type);
    const takes = node.widgets.find(({ name }) => name === "takes").value;
    return { height: node.size[1], steps: changeTracker.undoQueue.length, takes };
  }, SAMPLER);
  await quiet(page, 500);
  await page.evaluate((type) => { // Nodes 2.0 draws it as high as it must be, and 0.27 does not say so
    const drawn = document.querySelector(".sdvg-route").closest("[data-node-id]");
    const node = window.app.graph.nodes.find((one) => one.type === type);
    if (drawn) node.setSize([400, drawn.offsetHeight - window.LiteGraph.NODE_TITLE_HEIGHT]);
  }, SAMPLER);
  await quiet(page, 500);
  await look(); // what was done to the graph is a step of its own
  await page.locator('.sdvg-squares [data-number="2"]').focus();
  await page.keyboard.press("n");
  await quiet(page, 500);
  const states = [await look()];
  await page.evaluate(() => window.app.queuePrompt(0, 1));
  await page.waitForFunction(() => window.lines > 1);
  await quiet(page);
  states.push(await look());
  await page.waitForFunction(() => document.querySelector(".sdvg-next").textContent && !document.querySelector(".sdvg-stop").checkVisibility());
  await quiet(page, 500);
  states.push(await look());
  await page.locator('.sdvg-squares [data-number="2"]').focus();
  const pressed = [];
  for (const key of ["Control+z", "Control+y"]) {
    await page.keyboard.press(key);
    await quiet(page, 1200);
    pressed.push((await look()).takes);
  }
  return { states, pressed, lines: await page.evaluate(() => window.lines) };
}

/** How many menus a right click beside the last square opens, and on what. */
async function clickGap(page) {
  const { x, y, width, height } = await page.locator('.sdvg-squares [data-number="9"]').boundingBox();
  const beside = { x: x + width + 8, y: y + height / 2 };
  const hit = await page.evaluate((at) => document.elementFromPoint(at.x, at.y).className, beside);
  await page.mouse.click(beside.x, beside.y, { button: "right" });
  await quiet(page);
  const menus = await page.evaluate(() => document.querySelectorAll(".litecontextmenu, .p-contextmenu, [role=menu]").length);
  await page.keyboard.press("Escape");
  return { hit, menus };
}

/** What is said of the next run before more takes of a block are made, while they are, and then. */
async function makeTakes(page) {
  const sentences = [await page.locator(".sdvg-next").textContent()];
  await page.locator('.sdvg-squares [data-number="9"]').focus();
  await page.keyboard.press("c");
  await page.waitForFunction(() => document.querySelector(".sdvg-stop").checkVisibility());
  sentences.push(await page.locator(".sdvg-next").textContent());
  await page.waitForFunction(() => { // all of them are made; between two, none is under way
    const labels = [...document.querySelectorAll(".sdvg-take")].map((cell) => cell.ariaLabel ?? "");
    const isMaking = labels.length < 4 || labels.some((label) => label.endsWith("being made"));
    return !isMaking && !document.querySelector(".sdvg-stop").checkVisibility() && document.querySelector(".sdvg-next").textContent;
  });
  sentences.push(await page.locator(".sdvg-next").textContent());
  await page.keyboard.press("Escape");
  return sentences;
}

/** Which buttons below the film lie within the strip, as during a run, on nodes of several widths. */
async function narrow(page) {
  const seen = {};
  for (const width of [640, 400, 250]) {
    await page.evaluate(([type, wide]) => {
      const node = window.app.graph.nodes.find((one) => one.type === type);
      node.setSize([wide, 900]);
      node.setDirtyCanvas(true, true);
    }, [SAMPLER, width]);
    await quiet(page, 500);
    seen[width] = await page.evaluate(() => {
      const stop = document.querySelector(".sdvg-stop");
      Object.assign(stop, { hidden: false, textContent: "Stop after this block" });
      const strip = document.querySelector(".sdvg-route").getBoundingClientRect();
      const buttons = [...document.querySelectorAll(".sdvg-controls button")].filter((one) => one.checkVisibility());
      const cut = buttons.filter((one) => {
        const { left, right, bottom } = one.getBoundingClientRect();
        return left < strip.left || right > strip.right + 1 || bottom > strip.bottom + 1 || one.scrollWidth > one.clientWidth + 1;
      });
      stop.hidden = true;
      return { buttons: buttons.length, cut: cut.map((one) => one.textContent) };
    });
  }
  return seen;
}
