// Locks by shot: the second of two fresh shots locked by its card, another seed, moves, undoing, and the page loaded anew.
//
//     NODE_PATH=folder/with/playwright-core node locks.js OPTIONS        (see page.js)
const { build, main, quiet, reload, run } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a big yellow ball runs right\n3 fresh #b: a small red ring rests on grass";

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await page.evaluate(write, { [SAMPLER]: { blocks: 5 }, SDVGPocketModels: { prompt: TEXT } });
  await quiet(page, 500);
  await run(page);
  await drawn(page);
  await quiet(page, 700);
  const made = await look(page, options.shot);
  await lock(page, 2);
  const locked = await look(page, options.shot);
  const menus = { locked: await menu(page, 4), free: await menu(page, 2) };
  await page.evaluate(write, { [SAMPLER]: { seed: options.seed + 1 } });
  await quiet(page, 900);
  const seeded = await look(page, options.shot);
  await run(page);
  await quiet(page, 900);
  const again = await look(page, options.shot);
  await page.evaluate(() => document.activeElement.blur());
  const steps = {};
  for (const [name, act] of Object.entries(ACTS)) {
    await act(page);
    await quiet(page, 700);
    steps[name] = await look(page, options.shot);
  }
  await reload(page);
  await quiet(page, 900);
  const reloaded = await look(page, options.shot);
  await press(card(page, 1).locator(".sdvg-shot-keep"), " "); // which stands second
  await quiet(page, 700);
  const freed = await look(page, options.shot);
  await page.evaluate(write, { [SAMPLER]: { blocks: 9, kept_blocks: "" }, SDVGPocketModels: { prompt: "a sea" } });
  return { made, locked, menus, seeded, again, steps, reloaded, freed };
});

const ACTS = {
  both: (page) => lock(page, 1),
  swapped: (page) => press(card(page, 1).locator(".sdvg-shot-title"), "Alt+ArrowRight"),
  back: (page) => undo(page),
  removed: (page) => choose(page, 2, /^remove/),
  restored: (page) => undo(page),
  moved: (page) => press(card(page, 2).locator(".sdvg-shot-title"), "Alt+ArrowLeft"),
  ran: (page) => run(page),
};

async function press(locator, key) {
  await locator.focus();
  await locator.page().keyboard.press(key);
}

/** Undo a step, after which there are both cards. */
async function undo(page) {
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  await drawn(page);
}

/** Both cards show their pictures. */
function drawn(page) {
  return page.waitForFunction(() => document.querySelectorAll(".sdvg-shot canvas:not(.blank)").length === 2);
}

function card(page, number) {
  return page.locator(`.sdvg-shot >> nth=${number - 1}`);
}

/** Lock a shot by its card; the server writes it first. */
async function lock(page, number) {
  const before = await kept(page);
  await press(card(page, number).locator(".sdvg-shot-keep"), " ");
  await page.waitForFunction(([type, last]) => window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "kept_blocks").value !== last, [SAMPLER, before]);
  await quiet(page, 700);
}

function kept(page) {
  return page.evaluate((type) => window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "kept_blocks").value, SAMPLER);
}

async function choose(page, number, name) {
  await press(card(page, number).locator(".sdvg-shot-top .sdvg-button"), "Enter");
  await press(page.getByRole("menuitem", { name }), "Enter");
}

/** What the menu of a square says of locks. */
async function menu(page, number) {
  await press(page.locator(`.sdvg-squares [data-number="${number}"]`), "Enter");
  const items = await page.locator(".sdvg-menu [role^=menuitem]").evaluateAll((all) => all.map((one) => one.firstChild.textContent));
  await page.keyboard.press("Escape");
  return items.filter((item) => item.includes("lock blocks"));
}

/** Change widgets as their own boxes would: type of node -> name -> value. */
function write(all) {
  for (const [type, values] of Object.entries(all))
    for (const [name, value] of Object.entries(values)) {
      const widget = window.app.graph.nodes.find((node) => node.type === type).widgets.find((one) => one.name === name);
      widget.value = value;
      widget.callback?.(widget.value);
    }
  const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
  (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
}

let shots = 0;

/** Cards, squares, pictures by their bytes, and what the nodes hold. `shot`: a folder for pictures of the page. */
async function look(page, shot) {
  shots += 1;
  if (shot) await page.screenshot({ path: `${shot}/locks-${shots}.png` });
  return page.evaluate((type) => {
    const { nodes } = window.app.graph;
    const value = (of, name) => nodes.find((node) => node.type === of).widgets.find((widget) => widget.name === name).value;
    const squares = [...document.querySelectorAll(".sdvg-squares button")];
    const cards = [...document.querySelectorAll(".sdvg-shot")].map((element) => {
      const keep = element.querySelector(".sdvg-shot-keep");
      return {
        lock: [keep.getAttribute("aria-pressed"), keep.title], words: element.querySelector("textarea").readOnly,
        take: element.querySelector(".sdvg-shot-take").disabled,
      };
    });
    return {
      cards, locked: squares.filter((square) => square.classList.contains("kept")).map((square) => Number(square.dataset.number)),
      pictures: squares.map((square) => square.querySelector("canvas").toDataURL()), outcomes: squares.map((square) => square.dataset.outcome ?? ""),
      kept: value(type, "kept_blocks"), text: value("SDVGPocketModels", "prompt"), next: document.querySelector(".sdvg-next").textContent,
      error: document.querySelector(".sdvg-error").textContent,
      undo: window.app.extensionManager.workflow.activeWorkflow.changeTracker.undoQueue.length,
    };
  }, SAMPLER);
}
