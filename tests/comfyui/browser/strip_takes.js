// Takes and runs side by side on the strip: what is compared, chosen, locked, and made again.
const { quiet, run } = require("./page.js");
const { known, look, SAMPLER, settled, square } = require("./strip_look.js");

/** Three more takes of block 8 side by side; one is chosen and made; back to the first; then blocks 1 to 7 are kept. */
async function compareTakes(page) {
  const cells = () => page.evaluate(() => [...document.querySelectorAll(".sdvg-take")].map((cell) => [
    cell.dataset.take, cell.getAttribute("aria-checked"), cell.querySelector("canvas").dataset.shown ?? null, cell.getAttribute("aria-label"),
  ]));
  const all = () => page.waitForFunction(() => document.querySelectorAll(".sdvg-take:not(:disabled) canvas:not(.blank)").length === 4);
  const idle = () => page.waitForFunction(() => !document.querySelector(".sdvg-stop").checkVisibility());
  // The prompts of other tests may hold NaN, which is no JSON.
  const videos = () => page.evaluate(async () => JSON.parse((await (await fetch("/api/history")).text()).replaceAll("NaN", "null")));
  const kinds = async () => Object.values(await videos()).filter(({ outputs }) => JSON.stringify(outputs).includes(".mp4")).length;
  const before = await kinds();
  await square(page, 8).focus();
  await page.keyboard.press("c");
  await all();
  await idle();
  await quiet(page);
  const made = { cells: await cells(), strip: await look(page), videos: (await kinds()) - before };
  await page.locator('.sdvg-take[data-take="1"]').focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  const chosen = { cells: await cells(), takes: (await look(page)).takes };
  await quiet(page); // the server has said what it knows
  const seen = () => page.evaluate(() => document.querySelector(".sdvg-next").checkVisibility());
  chosen.forecast = [(await look(page)).next, await seen(), (await look(page)).button];
  await run(page);
  await quiet(page);
  const second = { cells: await cells(), events: (await known(page)).filter((one) => !one.until).at(-1).events };
  await page.locator('.sdvg-take[data-take="1"]').click();
  await run(page);
  await quiet(page);
  const back = (await known(page)).filter((one) => !one.until).at(-1).events;
  await page.keyboard.press("Escape");
  await square(page, 7).focus();
  const pair = await compareRuns(page);
  const [refused, lock] = await keepBlocks(page);
  const seed = (by) => page.evaluate(([type, change]) => {
    const widget = window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "seed");
    widget.value += change;
    widget.callback?.(widget.value);
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
  }, [SAMPLER, by]);
  await seed(1000);
  await quiet(page);
  const kept = { refused, lock, asked: await look(page) };
  await run(page);
  await settled(page);
  Object.assign(kept, { made: await look(page), thumbs: await page.evaluate(() => document.querySelectorAll(".sdvg-squares canvas:not(.blank)").length) });
  await square(page, 2).click({ button: "right" });
  kept.items = await page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
  await page.getByRole("menuitem", { name: /^unlock blocks 2 to 7/ }).click();
  await page.waitForFunction((type) => window.app.graph.nodes.find((node) => node.type === type).widgets.some(({ value }) => String(value).startsWith("1:")), SAMPLER);
  await quiet(page);
  kept.released = await look(page);
  await square(page, 1).click({ button: "right" });
  await page.getByRole("menuitem", { name: "unlock block 1" }).click();
  await seed(-1000);
  await run(page);
  await settled(page);
  return { made, chosen, second, back, kept, pair };
}

/** Keep what the chosen square offers: what the widget says if the server has it no more, and if it has; whether that is on the disk. */
async function keepBlocks(page) {
  const said = () => page.evaluate((type) => window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "kept_blocks").value, SAMPLER);
  const told = (text) => page.waitForFunction((wanted) => document.body.textContent.includes(wanted), text);
  const gone = (route) => route.continue({ postData: JSON.stringify({ blocks: "7:0123456789abcdef" }) });
  await page.route("**/sdvg/keep", gone);
  await page.keyboard.press("k");
  await told("the server no longer has blocks 1 to 7");
  const refused = await said();
  await page.unroute("**/sdvg/keep", gone);
  await page.keyboard.press("k");
  await told("Saved in output/sdvg/kept");
  const text = await said();
  const file = `/api/view?subfolder=sdvg/kept&type=output&filename=${text.split(":")[1]}.safetensors`;
  return [refused, { text, status: await page.evaluate(async (path) => (await fetch(path)).status, file) }];
}

/** Another run beside the one that is shown: on one time line, enlarged, another one chosen, and left by Escape from anywhere. */
async function compareRuns(page) {
  const seen = () => page.evaluate(() => {
    const films = [...document.querySelectorAll(".sdvg-below > canvas")].map((one) => ({
      painted: one.dataset.painted?.split("/"), seen: one.checkVisibility(), box: one.getBoundingClientRect().toJSON(),
    }));
    const tools = [...document.querySelectorAll(".sdvg-compare > *, .sdvg-controls button")].filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect());
    const over = tools.filter(({ top }) => films.some(({ box }) => top < box.bottom)).length;
    const dialog = document.querySelector("dialog.sdvg-large");
    return {
      films: films.map(({ painted }) => painted), sizes: films.map(({ box }) => [Math.round(box.width), Math.round(box.height)]), over,
      captions: [...document.querySelectorAll(".sdvg-caption")].map((one) => one.textContent), pairing: Boolean(document.querySelector(".pairing")),
      runs: [...document.querySelectorAll(".sdvg-compare option")].map((one) => one.textContent), focus: document.activeElement.dataset.number ?? null,
      large: dialog && [...dialog.querySelectorAll("canvas")].map((one) => one.dataset.painted.split("/")), names: dialog && [...dialog.querySelectorAll("p")].map((one) => one.textContent),
      named: [...document.querySelectorAll(".sdvg-compare > *")].every((one) => one.ariaLabel),
    };
  });
  await page.keyboard.press("p");
  await page.keyboard.press("b");
  if (await page.evaluate(() => document.querySelector(".sdvg-play").dataset.playing === "true")) await page.keyboard.press("p");
  await page.waitForFunction(() => document.querySelector(".sdvg-before").checkVisibility() && !document.querySelector(".sdvg-before").classList.contains("blank"));
  const line = page.locator(".sdvg-compare input");
  await line.focus();
  await page.keyboard.press("Home");
  for (let i = 0; i < 9; i += 1) await page.keyboard.press("ArrowRight"); // the first frame of block 2
  const states = { moved: await seen() };
  await square(page, 8).hover();
  states.scrubbed = await seen();
  await page.mouse.move(700, 880);
  await square(page, 8).focus();
  await page.keyboard.press("e");
  states.large = await seen();
  await page.keyboard.press("ArrowRight");
  states.next = await seen();
  await page.locator("dialog.sdvg-large button").last().click();
  states.back = await seen();
  await page.locator(".sdvg-compare select").focus();
  await page.keyboard.press("ArrowDown");
  await quiet(page);
  states.older = await seen();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Escape"); // with the focus nowhere
  states.left = await seen();
  await square(page, 7).focus();
  const all = (await known(page)).filter((one) => !one.until);
  return { ...states, made: all.filter((one) => one.workflow === all.at(-1).workflow).map((one) => one.run) };
}

/** Another take of block 6: what is outlined, and what is then made. */
async function takeAgain(page) {
  await square(page, 6).focus();
  await page.keyboard.press("n");
  await quiet(page); // the server says what the next run changes
  const asked = await look(page);
  const letters = await markPending(page);
  await page.evaluate(() => document.activeElement.blur());
  await run(page);
  await settled(page);
  return { asked, letters, made: await look(page), events: (await known(page)).at(-1).events };
}

/** Block 8, which is to be remade, given to the large model and back to the router: its letter as drawn, before, with it and after. */
async function markPending(page) {
  await square(page, 8).focus();
  await quiet(page);
  const corners = [];
  for (const key of ["", "t", "."]) {
    if (key) await page.keyboard.press(key);
    await quiet(page);
    const isDimmed = await square(page, 8).evaluate((one) => getComputedStyle(one.querySelector("canvas")).filter !== "none");
    corners.push([isDimmed, await brightestCorner(page, 8)]);
  }
  await square(page, 6).focus();
  return corners;
}

/** The brightest pixel of a square's upper left corner, by its darkest channel: where its letter is. */
async function brightestCorner(page, number) {
  const picture = (await square(page, number).screenshot()).toString("base64");
  return page.evaluate(async (data) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
    const pen = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    pen.drawImage(bitmap, 0, 0);
    const pixels = pen.getImageData(2, 2, bitmap.width >> 2, bitmap.height >> 2).data;
    const channels = Array.from({ length: pixels.length / 4 }, (_, i) => Math.min(...pixels.slice(4 * i, 4 * i + 3)));
    return Math.max(...channels);
  }, picture);
}

module.exports = { compareTakes, takeAgain };
