// The shots of a video as cards: every edit by mouse or keyboard, what it writes, undoing it, and the text changed elsewhere.
//
//     NODE_PATH=folder/with/playwright-core node shots.js OPTIONS        (see page.js)
const { build, main, quiet, run, turnsWhile } = require("./page.js");
const { switchRenderers } = require("./renderers.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a big yellow ball runs right and down from the middle over night\n4: a small red ring rests on grass\n7: a large blue ball rests on sand";

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await quiet(page);
  const one = await look(page);
  await press(page.locator(".sdvg-shots-button"), "Enter");
  const opened = await look(page);
  await write(page, TEXT);
  await quiet(page, 500);
  const three = await look(page);
  const edits = await edit(page);
  const undone = await undo(page);
  const beside = await undoBeside(page);
  const after = await addAfter(page);
  await write(page, TEXT.replace("7: ", "2: "));
  await quiet(page, 500);
  const disordered = await look(page);
  await write(page, TEXT);
  await quiet(page, 500);
  await run(page);
  await page.waitForFunction(() => document.querySelectorAll(".sdvg-shot canvas:not(.blank)").length === 3);
  await quiet(page);
  const made = await look(page);
  const draft = await draftPrompt(page);
  const tau = await dragTau(page);
  const shortened = await shorten(page, options);
  await press(card(page, 1).locator(".sdvg-shot-keep"), " ");
  await page.waitForFunction((type) => window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "kept_blocks").value, SAMPLER);
  await quiet(page);
  const kept = await look(page);
  for (const [name, number] of [["locked", 1], ["menu", 2]]) {
    await card(page, number).locator(".sdvg-shot-top .sdvg-button").click();
    kept[name] = await menu(page);
    await page.keyboard.press("Escape");
  }
  await card(page, 3).locator("textarea").fill("a small blue ball rests on sand");
  await page.keyboard.press("Enter");
  await run(page);
  await quiet(page);
  const secondRun = await look(page);
  await page.locator(".sdvg-shots-button").click();
  await quiet(page);
  const closed = await look(page);
  await page.locator(".sdvg-shots-button").click();
  await press(card(page, 2).locator(".sdvg-shot-title"), "Enter");
  const chosen = await page.evaluate(() => document.querySelector('.sdvg-squares [tabindex="0"]').dataset.number);
  const names = await page.evaluate(nameAll);
  const counts = await count(page);
  await write(page, TEXT);
  const seen = { one, opened, three, edits, undone, beside, after, disordered, made, draft, tau, shortened, kept, "second run": secondRun, closed, chosen, names, counts };
  return { ...seen, renderers: await switchRenderers(page) };
});

async function press(locator, key) {
  await locator.focus();
  await locator.page().keyboard.press(key);
}

/** All that can be reached on the strip, by its role and whether it has a name. */
function nameAll() {
  const every = document.querySelectorAll(".sdvg-route :is(button, input, select, textarea, [role=slider], [role=img], canvas.sdvg-film)");
  return [...every].map((one) => [one.className || one.tagName, Boolean(one.ariaLabel || one.getAttribute("aria-label") || one.textContent || one.ariaHidden)]);
}

/**
 * What our scripts ask for in ten idle seconds; the elements of the strip with 9 and with 100 blocks; what is read of the layout while
 * its squares scroll, and that this count sees a reading.
 */
async function count(page) {
  await page.waitForFunction(() => document.querySelector(".sdvg-play").dataset.playing === "false");
  await quiet(page);
  const requests = [];
  const hear = (request) => requests.push(request.url());
  page.on("request", hear);
  const idle = await turnsWhile(page, 10000);
  page.off("request", hear);
  const few = await page.evaluate(() => document.querySelectorAll(".sdvg-route *").length);
  await write(page, TEXT, 100);
  await quiet(page, 500);
  const many = await page.evaluate(() => document.querySelectorAll(".sdvg-route *").length);
  const scrolled = () => page.evaluate(() => [document.querySelector(".sdvg-squares").scrollTop, window.app.canvas.ds.scale]);
  await page.locator('.sdvg-squares [data-number="1"]').focus(); // in Nodes 2.0 the wheel scrolls what has the focus
  await page.locator('.sdvg-squares [data-number="30"]').hover();
  await page.evaluate(watchLayout);
  const states = [await scrolled()];
  for (let i = 0; i < 3; i += 1) {
    await page.mouse.wheel(0, 20);
    await quiet(page);
  }
  const reads = [await page.evaluate(() => window.layoutReads)];
  states.push(await scrolled());
  await page.locator(".sdvg-side").hover();
  reads.push(await page.evaluate(() => window.layoutReads));
  await page.mouse.wheel(0, 20);
  await quiet(page);
  states.push(await scrolled());
  return { idle, requests, few, many, states, reads };
}

/** Count from now on how often our own scripts read of the layout, or of any script that they call. */
function watchLayout() {
  window.layoutReads = 0;
  const heed = (of, name, key) => {
    const known = Object.getOwnPropertyDescriptor(of, name);
    const read = known[key];
    Object.defineProperty(of, name, { ...known, [key](...given) {
      window.layoutReads += /extensions\/sdvg\//.test(new Error().stack);
      return read.apply(this, given);
    } });
  };
  for (const name of ["getBoundingClientRect", "getClientRects", "checkVisibility"]) heed(Element.prototype, name, "value");
  for (const name of ["clientHeight", "clientWidth", "scrollHeight", "scrollWidth", "scrollTop", "scrollLeft"]) heed(Element.prototype, name, "get");
  for (const name of ["offsetTop", "offsetLeft", "offsetHeight", "offsetWidth", "innerText"]) heed(HTMLElement.prototype, name, "get");
  for (const name of ["getComputedStyle"]) heed(window, name, "value");
}

function card(page, number) {
  return page.locator(`.sdvg-shot >> nth=${number - 1}`);
}

function menu(page) {
  return page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
}

/** What the cards show, and what the nodes hold. */
function look(page) {
  return page.evaluate((type) => {
    const { nodes } = window.app.graph;
    const sampler = nodes.find((node) => node.type === type);
    const value = (node, name) => node.widgets.find((widget) => widget.name === name).value;
    const mark = (canvas) => [getComputedStyle(canvas).filter !== "none", getComputedStyle(canvas).outlineStyle];
    const squares = [...document.querySelectorAll(".sdvg-squares button")];
    const buttons = (element) => [...element.querySelectorAll(".sdvg-shot-row .sdvg-button")].map((one) => [one.textContent, one.getAttribute("aria-label"), one.disabled]);
    const cards = [...document.querySelectorAll(".sdvg-shot")].map((element) => ({
      name: element.getAttribute("aria-label"), title: element.querySelector(".sdvg-shot-title").textContent, prompt: element.querySelector("textarea").value,
      blocks: Number(element.querySelector("input").value), seconds: element.querySelector("span").textContent, buttons: buttons(element),
      shown: element.querySelector("canvas").dataset.shown ?? null, seen: element.checkVisibility(), picture: mark(element.querySelector("canvas")),
      named: [...element.querySelectorAll("button, textarea, input")].every((one) => one.getAttribute("aria-label") || one.textContent),
    }));
    const button = document.querySelector(".sdvg-shots-button");
    const focused = document.activeElement;
    const shot = [...document.querySelectorAll(".sdvg-shot")].findIndex((one) => one.contains(focused));
    const drawn = document.querySelector(".sdvg-route").closest("[data-node-id]"); // by Nodes 2.0, which may not tell node.size
    return {
      cards, text: value(nodes.find((node) => node.type === "SDVGPocketModels"), "prompt"), blocks: value(sampler, "blocks"),
      directions: value(sampler, "directions"), takes: value(sampler, "takes"), kept: value(sampler, "kept_blocks").split(":")[0],
      button: [button.disabled, button.getAttribute("aria-expanded"), button.title], height: drawn?.offsetHeight ?? sampler.size[1],
      focus: [shot + 1, focused.tagName], outcomes: squares.map((one) => one.dataset.outcome ?? null),
      old: squares.flatMap((one, i) => (mark(one.querySelector("canvas"))[0] ? [i + 1] : [])), film: mark(document.querySelector(".sdvg-film")),
      legend: document.querySelector(".sdvg-legend").textContent,
    };
  }, SAMPLER);
}

/** Change the text and the length as their own boxes would. */
function write(page, text, blocks = 9) {
  return page.evaluate(([type, ...values]) => {
    [["SDVGPocketModels", "prompt"], [type, "blocks"]].forEach(([of, name], i) => {
      const widget = window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === name);
      widget.value = values[i];
      widget.callback?.(widget.value);
    });
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
  }, [SAMPLER, text, blocks]);
}

/** One edit after the other; the menu is used with keys and with the mouse. */
async function edit(page) {
  const seen = {};
  await card(page, 2).locator("textarea").click();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("a small green ring rests on grass");
  await page.keyboard.press("Enter");
  seen.said = await look(page);
  await card(page, 2).locator("textarea").click();
  await page.keyboard.type(" and more");
  await page.keyboard.press("Escape");
  seen.left = await look(page);
  await press(card(page, 2).locator(".sdvg-shot-cut"), " ");
  seen.cut = await look(page);
  await press(card(page, 2).locator(".sdvg-shot-take"), "Enter");
  seen.take = await look(page);
  await card(page, 2).locator("input").fill("2");
  await page.keyboard.press("Enter");
  seen.shorter = await look(page);
  await card(page, 2).locator(".sdvg-shot-top .sdvg-button").focus();
  await page.keyboard.press("Enter");
  seen.menu = await menu(page);
  for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key); // past the take in force
  seen.moved = await look(page);
  await card(page, 1).locator(".sdvg-shot-top .sdvg-button").click();
  await page.getByRole("menuitem", { name: /^remove/ }).click();
  seen.removed = await look(page);
  await press(page.locator(".sdvg-add button"), "Enter");
  seen.added = await look(page);
  await page.keyboard.type("fog");
  await page.keyboard.press("Enter");
  seen.named = await look(page);
  return seen;
}

/** A shot added by the menu of the first one, and words typed at once, some of whose letters are ComfyUI's hotkeys. */
async function addAfter(page) {
  await card(page, 1).locator(".sdvg-shot-top .sdvg-button").click();
  await page.getByRole("menuitem", { name: /^add a shot after it/ }).click();
  const added = await look(page);
  await page.keyboard.type("rain, wind and a sea");
  const typed = await look(page);
  await page.keyboard.press("Enter");
  return { added, typed, entered: await look(page) };
}

/** What the strip says of the next run while words are typed on the last card, as they go, and as others are entered; the steps to undo. */
async function draftPrompt(page) {
  const nextRun = () => document.querySelector(".sdvg-next").textContent;
  const state = async () => ({ next: await page.evaluate(nextRun), text: (await look(page)).text, undo: (await page.evaluate(history)).undo });
  const changed = async (was) => {
    await page.waitForFunction((old) => !["", old].includes(document.querySelector(".sdvg-next").textContent), was, { timeout: 10000 }).catch(() => {});
    await quiet(page, 700);
    return state();
  };
  const area = card(page, 3).locator("textarea");
  const states = [await state()];
  await area.focus();
  await page.keyboard.press("Control+End");
  await page.keyboard.type(" in fog");
  states.push(await changed(states[0].next));
  const typed = await area.inputValue();
  await page.keyboard.press("Escape");
  states.push(await changed(states[1].next));
  await area.focus();
  await page.keyboard.press("Control+End");
  await page.keyboard.type(" by day");
  await page.keyboard.press("Enter");
  states.push(await changed(states[2].next));
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  states.push(await changed(states[3].next));
  return { states, typed };
}

/** The first shot made shorter after a run, so that its last picture stands where the next shot is; what a square offers; and undone. */
async function shorten(page, { picture }) {
  const square = (number) => page.locator(`.sdvg-squares [data-number="${number}"]`);
  await card(page, 1).locator("input").fill("2");
  await page.keyboard.press("Enter");
  await quiet(page, 500);
  await square(3).click();
  const seen = { shorter: await look(page) };
  if (picture) await page.locator(".sdvg-route").screenshot({ path: picture });
  await square(5).click({ button: "right" });
  seen.menu = await menu(page);
  await page.keyboard.press("Escape");
  await square(5).dblclick();
  seen.large = await page.evaluate(() => getComputedStyle(document.querySelector("dialog.sdvg-large canvas")).outlineStyle);
  await page.keyboard.press("Escape");
  await square(1).click();
  seen.first = (await look(page)).film;
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  await quiet(page, 700);
  return { ...seen, back: await look(page) };
}

/** The last two edits undone; each is one step, though it changed more than one widget. `differs`: what would be a step of its own. */
async function undo(page) {
  const steps = [];
  for (let i = 0; i < 2; i += 1) {
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("Control+z");
    await quiet(page, 700);
    steps.push({ ...(await look(page)), ...(await page.evaluate(history)) });
  }
  return steps;
}

/** Words typed on a card, then a length and a cut: undone and made again where the focus is, or is nowhere. */
async function undoBeside(page) {
  await card(page, 1).locator("textarea").click();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("a small green box rests on grass");
  await page.keyboard.press("Enter");
  await card(page, 1).locator("input").fill("4");
  await page.keyboard.press("Enter");
  const typed = await look(page);
  await press(card(page, 2).locator(".sdvg-shot-cut"), " ");
  const edits = [typed, await look(page)];
  await card(page, 2).locator(".sdvg-shot-cut").focus();
  const steps = [];
  for (const key of ["Control+z", "Control+y", "Control+z"]) {
    await page.keyboard.press(key);
    await quiet(page, 700);
    await page.mouse.move(5, 300);
    await page.mouse.up();
    steps.push({ ...(await look(page)), ...(await page.evaluate(history)) });
  }
  for (let i = 0; i < 2; i += 1) {
    await page.keyboard.press("Control+z");
    await quiet(page, 700);
  }
  return { edits, steps, left: await look(page) };
}

/** How many steps can be undone and redone, and the nodes whose size is another one than in the step that was loaded. */
async function history() {
  const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
  while (changeTracker._restoringState) await new Promise(requestAnimationFrame);
  const { nodes } = changeTracker.activeState;
  const differs = window.app.graph.serialize().nodes.filter(({ size }, i) => String(size) !== String(nodes[i].size));
  return { undo: changeTracker.undoQueue.length, redo: changeTracker.redoQueue.length, differs: differs.map(({ type }) => type) };
}

/** The line of tau moved up by the mouse until a block is marked, let go, set back by undoing; then moved by keys and left. */
async function dragTau(page) {
  const seen = () => page.evaluate(() => {
    const line = document.querySelector(".sdvg-tau-line");
    const router = window.app.graph.nodes.find((node) => node.type === "SDVGQualityRouter");
    const marked = (name) => [...document.querySelectorAll(`.sdvg-squares .${name}`)].map((one) => Number(one.dataset.number));
    return {
      now: Number(line.getAttribute("aria-valuenow")), text: line.getAttribute("aria-valuetext"), again: marked("again"), uncertain: marked("uncertain"),
      tau: router.widgets.find(({ name }) => name === "policy.tau").value, next: document.querySelector(".sdvg-next").textContent,
      dots: document.querySelectorAll(".sdvg-tau-dots i:not(.none)").length, pos: [...window.app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler").pos],
    };
  });
  const { runs } = await page.evaluate(async () => (await fetch("/sdvg/runs")).json());
  const states = { events: runs.at(-1).events, before: await seen() };
  const { x, y, height } = await page.locator(".sdvg-tau-line").boundingBox();
  await page.mouse.move(x + 60, y + height / 2);
  await page.mouse.down();
  const answered = () => page.waitForFunction(() => document.querySelector(".sdvg-next").textContent);
  for (let by = 2; by < 40 && !(await seen()).again.length; by += 2) {
    await page.mouse.move(x + 60, y + height / 2 - by);
    await answered();
  }
  states.dragged = await seen();
  await page.mouse.up();
  await quiet(page);
  states.set = await seen();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  await quiet(page, 700);
  states.undone = await seen();
  await page.locator(".sdvg-tau-line").focus();
  await page.keyboard.press("ArrowDown");
  await answered();
  states.key = await seen();
  await page.keyboard.press("Escape");
  await answered();
  states.left = await seen();
  for (const key of ["ArrowUp", "ArrowUp", "Enter"]) await page.keyboard.press(key);
  states.entered = await seen();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  await quiet(page, 700);
  return states;
}
