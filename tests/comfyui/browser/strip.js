// The strip as a control: directions and takes, what is made again, the film, stopping, and coming back in mid-run.
//
//     NODE_PATH=folder/with/playwright-core node strip.js OPTIONS        (see page.js)
const { build, DRAFT, main, quiet, reload, run, turnsWhile } = require("./page.js");
const { clear, known, look, SAMPLER, settled, square } = require("./strip_look.js");
const { compareTakes, takeAgain } = require("./strip_takes.js");

const LONG = 200; // blocks of the run that is left and stopped: it goes on meanwhile, however busy the machine is

main(async (page, options) => {
  const pictures = countPictures(page);
  await page.evaluate(build, options);
  await quiet(page);
  const before = await look(page);
  const menu = await useMenu(page);
  const keys = await useKeys(page);
  const undone = await undo(page);
  await run(page);
  await settled(page);
  const first = { ...(await look(page)), drift: await page.evaluate(seenDrift), refused: await page.evaluate(showError) };
  const film = await watchFilm(page);
  const sheet = await compareTakes(page);
  const again = await takeAgain(page);
  const strays = await pester(page);
  const off = await turnOff(page, pictures);
  const left = await leaveAndStop(page);
  return { before, menu, keys, undone, first, film, sheet, again, strays, off, left };
});

/** Whether the forecast is seen without an error, and with one. */
function showError() {
  const [next, error] = [".sdvg-next", ".sdvg-error"].map((name) => document.querySelector(name));
  return ["", "this was refused"].map((text) => {
    error.textContent = text;
    const seen = next.checkVisibility();
    error.textContent = "";
    return seen;
  });
}

/** The drift line as it is drawn, and what the server says of each block. */
async function seenDrift() {
  const element = document.querySelector(".sdvg-drift");
  const { runs } = await (await fetch("/sdvg/runs")).json();
  const box = element.querySelector("path").getBoundingClientRect();
  return { told: runs.at(-1).events.map(({ drift }) => drift), path: element.querySelector("path").getAttribute("d"), text: element.textContent,
    label: element.getAttribute("aria-label"), shown: element.checkVisibility(), width: box.width, height: box.height };
}

/** With the mouse: directions by the menu, and a take. */
async function useMenu(page) {
  const items = () => page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) =>
    [item.getAttribute("role"), item.firstChild.textContent, item.getAttribute("aria-checked")]));
  await square(page, 3).click({ button: "right" });
  const opened = { items: await items(), focus: (await look(page)).focus, expanded: await square(page, 3).getAttribute("aria-expanded") };
  await page.getByRole("menuitemradio", { name: "large model makes it" }).click();
  const target = await look(page);
  await square(page, 3).click();
  const selected = await items();
  await page.locator(".sdvg-more").click(); // the menu of the block that is chosen
  const checked = await items();
  await page.keyboard.press("Escape");
  const escaped = { ...(await look(page)), open: (await items()).length };
  await square(page, 6).click({ button: "right" });
  await page.getByRole("menuitem", { name: "another take (2)" }).click();
  await square(page, 6).click({ button: "right" });
  const another = await items();
  await page.mouse.click(700, 880); // elsewhere
  return { opened, target, selected, checked, escaped, another, taken: await look(page), open: (await items()).length };
}

/** With keys alone: from square to square, directly, and through the menu. */
async function useKeys(page) {
  const press = async (...keys) => {
    for (const key of keys) await page.keyboard.press(key);
    return look(page);
  };
  await square(page, 1).focus();
  const moved = await press("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft");
  const said = [(await press("n")).said, (await press("Enter", "End", "Enter")).said]; // another take, and back by the menu
  const written = await press("d", "End", "t", "n");
  await square(page, 4).focus();
  const asked = await press("w");
  await page.keyboard.type("a small red ring rests on grass");
  const prompt = { asked, ...(await press("Enter")), text: await pocketPrompt(page) };
  await page.locator(".sdvg-shot textarea >> nth=1").click();
  await press("Control+a", "Delete", "Enter");
  prompt.cleared = await pocketPrompt(page);
  await square(page, 9).focus();
  const cleared = await press(".", "Home", "ArrowRight", "ArrowRight", ".");
  const chosen = await press("Enter", "ArrowDown", "ArrowDown", "Enter");
  const first = await press("ArrowRight", "ArrowRight", "ArrowRight", " ", "End", "Enter"); // block 6 back to its first take
  return { moved, written, prompt, cleared, chosen, first, said };
}

function pocketPrompt(page) {
  return page.evaluate(() => window.app.graph.nodes.find((node) => node.type === "SDVGPocketModels").widgets.find(({ name }) => name === "prompt").value);
}

/** Undo steps and do one again, with the focus on a square; then leave both widgets empty. */
async function undo(page) {
  await page.keyboard.press("d");
  await quiet(page);
  const before = await look(page);
  const steps = [];
  for (const key of ["Control+z", "Control+y", "Control+z", "Control+z"]) {
    const last = await page.evaluate(written, SAMPLER);
    await page.keyboard.press(key);
    const changed = `!["", ${JSON.stringify(last)}].includes((${written})("${SAMPLER}"))`; // else what was seen says so
    await page.waitForFunction(changed, null, { timeout: 20000 }).catch(() => {});
    await quiet(page, 300);
    const returned = () => document.activeElement.dataset.number === "6"; // a slow machine draws the square later; else what was seen says so
    await page.waitForFunction(returned, null, { timeout: 5000 }).catch(() => {});
    steps.push(await look(page));
  }
  const sent = await sentFor(page, [9, 4, 12]);
  await page.evaluate(clear, SAMPLER);
  await square(page, 6).focus();
  return { before, steps, sent, cleared: await look(page) };
}

/** What both widgets hold, as one text; none while the nodes are made anew. */
function written(type) {
  const { widgets = [] } = window.app.graph.nodes.find((node) => node.type === type) ?? {};
  return widgets.filter(({ name }) => ["directions", "takes"].includes(name)).map(({ value }) => value).join("/");
}

/** What would be sent with other numbers of blocks; in the end it is as before. */
async function sentFor(page, numbers) {
  const sent = [];
  for (const number of [...numbers, 9]) {
    sent.push(await page.evaluate(async ({ type, number: blocks }) => {
      const sampler = window.app.graph.nodes.find((node) => node.type === type);
      const widget = sampler.widgets.find((one) => one.name === "blocks");
      widget.value = blocks;
      widget.callback?.(blocks);
      const { inputs } = (await window.app.graphToPrompt()).output[sampler.id];
      return [inputs.blocks, inputs.directions, inputs.takes, document.querySelectorAll(".sdvg-squares button").length];
    }, { type: SAMPLER, number }));
  }
  return sent;
}

/** The frames shown during some time, or until they are of so many blocks, as "block:frame". */
async function frames(page, times = 12, blocks = Infinity) {
  const shown = new Set();
  for (let i = 0; i < times && new Set([...shown].map((one) => one?.split(":")[0])).size < blocks; i += 1) {
    shown.add(await page.evaluate(() => document.querySelector(".sdvg-film").dataset.shown ?? null));
    await page.waitForTimeout(130);
  }
  return [...shown];
}

async function watchFilm(page) {
  const over = () => page.waitForFunction(() => document.querySelector(".sdvg-play").dataset.playing === "false");
  await over(); // it stops by itself
  await quiet(page);
  const idle = await turnsWhile(page, 1000);
  await page.locator(".sdvg-play").click();
  const all = await frames(page, 40, 4);
  const busy = await turnsWhile(page, 1000);
  await page.locator(".sdvg-play").click();
  const paused = await frames(page, 4);
  const named = (await look(page)).button;
  const scrubbed = [];
  const box = await square(page, 2).boundingBox();
  for (const share of [0.04, 0.54, 0.96]) { // none at the border of two frames
    await page.mouse.move(box.x + share * box.width, box.y + 8);
    scrubbed.push(await film(page));
  }
  const detail = (await look(page)).detail;
  await square(page, 2).click();
  await page.mouse.move(700, 880);
  const chosen = await film(page);
  const steps = [];
  for (const key of ["Shift+ArrowLeft", "Shift+ArrowRight", "ArrowRight", "p", "p"]) {
    await page.keyboard.press(key);
    steps.push(await film(page));
  }
  await square(page, 5).dblclick();
  const large = await page.evaluate(() => document.querySelector("dialog.sdvg-large canvas").dataset.shown);
  await page.keyboard.press("ArrowRight");
  const largeNext = await page.evaluate(() => document.querySelector("dialog.sdvg-large canvas").dataset.shown);
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog.sdvg-large"));
  const closed = (await look(page)).focus;
  const thumbs = await page.evaluate(() => [...document.querySelectorAll(".sdvg-squares canvas")].map((one) => one.dataset.shown));
  const pixels = await page.evaluate(() => {
    const film = document.querySelector(".sdvg-film");
    const { data } = film.getContext("2d").getImageData(0, 0, film.width, film.height);
    return { width: film.width, height: film.height, colours: new Set(new Uint32Array(data.buffer)).size, seen: film.checkVisibility() };
  });
  await page.locator(".sdvg-play").click();
  await page.emulateMedia({ reducedMotion: "reduce" });
  await over();
  await square(page, 7).hover();
  const still = [...(await frames(page, 4)), (await look(page)).detail];
  await page.mouse.move(700, 880);
  await page.emulateMedia({ reducedMotion: "no-preference" });
  return { idle, all, busy, paused, named, scrubbed, detail, chosen, steps, large: [large, largeNext], closed, thumbs, pixels, still };
}

function film(page) {
  return page.evaluate(() => document.querySelector(".sdvg-film").dataset.shown);
}

/** A block of another run, one that is out of order, and one that begins a run; the server's word stands. */
async function pester(page) {
  const outcomes = async () => (await look(page)).squares.map((one) => one.outcome);
  const send = async (changes) => {
    await page.evaluate(async ({ type, changes: news }) => {
      const { app, comfyAPI } = window;
      const node = String(app.graph.nodes.find((one) => one.type === type).id);
      const event = { run: "of nobody", node, workflow: app.graph.id, number: 1, of: 9, outcome: "bailed_out", score: null, seconds: 1 };
      comfyAPI.api.api.dispatchCustomEvent("sdvg.block", { ...event, ...news });
    }, { type: SAMPLER, changes });
    await quiet(page);
    return outcomes();
  };
  const before = await outcomes();
  const other = await send({ number: 4 });
  const { run, prompt } = (await known(page)).at(-1);
  const early = await send({ run, number: 12, of: 40 });
  const begun = await send({ prompt, number: 1 });
  const lost = await send({ number: 3 });
  return { before, other, early, begun, lost };
}

/** How often a picture of a block was asked for. */
function countPictures(page) {
  const count = { asked: 0 };
  page.on("request", (request) => {
    if (request.url().includes("/sdvg/frames/")) count.asked += 1;
  });
  return count;
}

/** Without the film nothing is asked of the server, not even for a new run. */
async function turnOff(page, pictures) {
  const on = pictures.asked;
  await page.evaluate(() => window.app.extensionManager.setting.set("sdvg.strip.play", false));
  await page.evaluate(clear, SAMPLER);
  await square(page, 8).focus();
  await page.keyboard.press("n");
  await page.evaluate(() => document.activeElement.blur());
  await run(page);
  await quiet(page, 500);
  const seen = await page.evaluate(() => document.querySelector(".sdvg-film").checkVisibility());
  const off = pictures.asked - on;
  await page.evaluate(() => window.app.extensionManager.setting.set("sdvg.strip.play", true));
  await quiet(page, 500);
  return { on, off, seen, onAgain: pictures.asked - on - off };
}

/** Start a long run, load the page anew while it goes on, and stop it. */
async function leaveAndStop(page) {
  await page.evaluate(clear, SAMPLER);
  await page.evaluate(({ type, blocks }) => {
    const [sampler, router] = [type, "PlannedRouter"].map((one) => window.app.graph.nodes.find((node) => node.type === one));
    const set = (node, name, value) => Object.assign(node.widgets.find((widget) => widget.name === name), { value });
    set(sampler, "blocks", blocks);
    set(sampler, "seed", sampler.widgets.find((widget) => widget.name === "seed").value + 100);
    set(router, "plan", "r".repeat(blocks));
  }, { type: SAMPLER, blocks: LONG });
  await page.evaluate(() => window.app.loadGraphData(JSON.parse(JSON.stringify(window.app.graph.serialize()))));
  await quiet(page, DRAFT);
  const many = (number) => document.querySelectorAll(".sdvg-squares .made").length >= number;
  const made = (number) => page.waitForFunction(many, number);
  page.evaluate(() => void window.app.queuePrompt(0, 1));
  await page.waitForFunction(() => document.querySelector(".sdvg-stop").checkVisibility());
  await made(2);
  const queued = await known(page);
  await reload(page, { running: true });
  await made(3);
  const reloaded = await look(page);
  const counted = reloaded.squares.filter((one) => one.outcome).length;
  await made(counted + 2);
  const server = (await known(page)).at(-1);
  const going = await look(page);
  const stopping = await page.evaluate(() => { // in one turn of the page, else the run may be over
    const stop = document.querySelector(".sdvg-stop");
    stop.click();
    return { text: stop.textContent, shown: stop.checkVisibility(), enabled: !stop.disabled };
  });
  await page.waitForFunction(() => !document.querySelector(".sdvg-stop").checkVisibility());
  const [{ done, run: run_ }] = (await known(page)).slice(-1);
  await page.waitForFunction(() => document.querySelector("video")?.duration > 0);
  const seconds = await page.evaluate(() => document.querySelector("video").duration);
  const stopped = await look(page);
  return { queued: queued.at(-1).run, run: run_, reloaded, server, going, stopping, done, stopped, seconds };
}
