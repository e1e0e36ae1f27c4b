// Shots that begin afresh, as cards: every act by mouse or keyboard, each undone and made again, and the page loaded anew.
//
//     NODE_PATH=folder/with/playwright-core node fresh.js OPTIONS        (see page.js)
const { build, main, quiet, reload, run } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a sea\n3 fresh #b: fog\n5: rain\n7 cut: snow";

const MADE = "a big yellow ball runs right and down from the middle over night\n3 fresh #b: a small red ring rests on grass\n5 fresh #c: a large blue ball rests on sand";

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await page.evaluate(write, [SAMPLER, TEXT, 8]);
  await quiet(page, 500);
  const first = await look(page);
  const steps = {};
  for (const [name, act] of Object.entries(ACTS)) {
    await act(page);
    await quiet(page, 300);
    steps[name] = await look(page);
  }
  const all = Object.keys(ACTS).length;
  const undone = await walk(page, "Control+z", all);
  const redone = await walk(page, "Control+y", all);
  const queued = await makeAlone(page);
  await reload(page);
  const reloaded = await look(page);
  const clips = await editClips(page);
  const made = await make(page);
  await page.evaluate(write, [SAMPLER, "a sea", 9]);
  return { first, steps, undone, redone, queued, reloaded, clips, made };
});

const ACTS = {
  switched: (page) => press(card(page, 4).locator(".sdvg-shot-fresh"), " "),
  begun: (page) => choose(page, 4, /^begin with the last frame of shot 3/),
  moved: (page) => press(card(page, 4).locator(".sdvg-shot-title"), "Alt+ArrowLeft"),
  back: (page) => press(card(page, 3).locator(".sdvg-shot-title"), "Alt+ArrowRight"),
  cloned: (page) => choose(page, 4, /^clone/),
  before: (page) => choose(page, 1, /^add a fresh shot before it/),
  cut: (page) => press(card(page, 3).locator(".sdvg-shot-cut"), "Enter"),
  removed: (page) => choose(page, 2, /^remove/),
};

async function press(locator, key) {
  await locator.focus();
  await locator.page().keyboard.press(key);
}

function card(page, number) {
  return page.locator(`.sdvg-shot >> nth=${number - 1}`);
}

async function choose(page, number, name) {
  await press(card(page, number).locator(".sdvg-shot-top .sdvg-button"), "Enter"); // a card may be below the window
  await press(page.getByRole("menuitem", { name }).or(page.getByRole("menuitemradio", { name })), "Enter");
}

/** Change the text and the length as their own boxes would. */
function write([type, text, blocks]) {
  const set = (of, name, value) => {
    const widget = window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === name);
    widget.value = value;
    widget.callback?.(widget.value);
  };
  set("SDVGPocketModels", "prompt", text);
  set(type, "blocks", blocks);
  const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
  (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
}

/** What the cards show, what the nodes hold, and how many steps can be undone. */
function look(page) {
  return page.evaluate((type) => {
    const { nodes } = window.app.graph;
    const value = (of, name) => nodes.find((node) => node.type === of).widgets.find((widget) => widget.name === name).value;
    const elements = [...document.querySelectorAll(".sdvg-shot")];
    const cards = elements.map((element) => {
      const fresh = element.querySelector(".sdvg-shot-fresh");
      return {
        fresh: fresh.hidden ? null : [fresh.getAttribute("aria-pressed"), fresh.textContent], seconds: element.querySelector("span").textContent,
        cut: element.querySelector(".sdvg-shot-cut").getAttribute("aria-pressed"), begins: element.classList.contains("afresh"),
      };
    });
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    const { activeElement } = document;
    return {
      cards, text: value("SDVGPocketModels", "prompt"), blocks: value(type, "blocks"), undo: changeTracker.undoQueue.length,
      focus: elements.findIndex((one) => one.contains(activeElement)) + 1, length: nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "blocks").label,
      messages: [...document.querySelectorAll(".p-toast-message, [data-testid=toast]")].map((one) => one.innerText),
    };
  }, SAMPLER);
}

/** Footage as cards: named, cut, moved, and taken away before another; a part that is none; and one step undone. */
async function editClips(page) {
  const clip = page.locator(".sdvg-clip >> nth=0");
  const text = async () => {
    await quiet(page, 500);
    return page.evaluate(() => window.app.graph.nodes.find((node) => node.type === "SDVGPocketModels").widgets.find(({ name }) => name === "prompt").value);
  };
  const fill = async (box, value) => {
    await clip.locator(`input >> nth=${box}`).fill(value);
    await page.keyboard.press("Tab");
    return text();
  };
  const pick = async (name) => {
    await press(clip.locator(".sdvg-button"), "Enter");
    await press(page.getByRole("menuitem", { name }), "Enter");
    return text();
  };
  await page.evaluate(write, [SAMPLER, "a sea\n3 clip #a:\n3 fresh #b from #a: fog", 6]);
  await quiet(page, 500);
  const kinds = await page.evaluate(() => [...document.querySelectorAll(".sdvg-shots > li")].map((one) => one.className));
  const texts = [await fill(0, "sky"), await fill(1, "1.5"), await fill(2, "4"), await fill(2, "1"), await pick("move later")];
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  texts.push(await text());
  await page.evaluate(write, [SAMPLER, "a sea\n3 clip #sky:\n3 clip #c:\n3 fresh #b from #sky: fog", 6]);
  await quiet(page, 500);
  texts.push(await pick("remove"));
  return { kinds, texts };
}

/** A film that is made; the pictures on its cards as a shot is moved and cloned, and as one with other words is made alone; and all made. */
async function make(page) {
  const pictures = () => page.evaluate(() => ({
    cards: [...document.querySelectorAll(".sdvg-shot canvas")].map((one) => [one.classList.contains("blank") ? null : one.dataset.shown, one.classList.contains("old")]),
    next: document.querySelector(".sdvg-next").textContent,
  }));
  const seen = {};
  await page.evaluate(write, [SAMPLER, MADE, 6]);
  await run(page);
  await page.waitForFunction(() => document.querySelectorAll(".sdvg-shot canvas:not(.blank)").length === 3);
  await quiet(page, 700);
  seen.first = await pictures();
  seen.joins = await joins(page);
  await press(card(page, 1).locator(".sdvg-shot-title"), "Alt+ArrowRight");
  await quiet(page, 700);
  seen.moved = await pictures();
  await choose(page, 1, /^clone/);
  await quiet(page, 700);
  seen.cloned = await pictures();
  for (let i = 0; i < 2; i += 1) {
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("Control+z");
    await quiet(page, 700);
  }
  await card(page, 2).locator("textarea").fill("a small green ring rests on grass");
  await page.keyboard.press("Enter");
  await quiet(page, 700);
  seen.said = await pictures();
  await choose(page, 2, /^make only/);
  await page.waitForFunction(() => !document.querySelectorAll(".sdvg-shot canvas")[1].classList.contains("old"));
  await quiet(page, 700);
  seen.alone = await pictures();
  await run(page);
  await quiet(page, 700);
  seen.all = await pictures();
  seen.earlier = await page.evaluate(() => document.querySelector(".sdvg-legend").textContent);
  return seen;
}

/** What the strip says of the joins: at each square, of the third one as it is looked at, and of all. */
async function joins(page) {
  const titles = await page.evaluate(() => [...document.querySelectorAll(".sdvg-squares button")].map((one) => one.title));
  const text = (name) => page.evaluate((of) => document.querySelector(of).textContent, name);
  const legend = await text(".sdvg-legend");
  await page.evaluate(() => document.querySelector('[data-number="3"]').dispatchEvent(new PointerEvent("pointermove", { bubbles: true })));
  const detail = await text(".sdvg-detail");
  await page.evaluate(() => document.querySelector(".sdvg-squares").dispatchEvent(new PointerEvent("pointerleave")));
  return { titles, legend, detail };
}

/** Texts after each step of undoing, or of redoing. */
async function walk(page, key, count) {
  const texts = [];
  for (let i = 0; i < count; i += 1) {
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press(key);
    await quiet(page, 700);
    texts.push((await look(page)).text);
  }
  return texts;
}

/** What is queued to make the second shot alone; the server does not hear of it. */
async function makeAlone(page) {
  let sent = null;
  await page.route("**/prompt", (route) => {
    if (route.request().method() !== "POST") return route.fallback();
    sent = route.request().postDataJSON();
    return route.fulfill({ json: { prompt_id: "alone", number: 1, node_errors: {} } });
  });
  await choose(page, 2, /^make only/);
  await quiet(page, 500);
  await page.unroute("**/prompt");
  const [id, sampler] = Object.entries(sent.prompt).find(([, node]) => node.class_type === SAMPLER);
  const types = sent.partial_execution_targets.map((target) => sent.prompt[target].class_type);
  return { until: sampler.inputs.until_block, of: sampler.inputs.blocks, types, id };
}
