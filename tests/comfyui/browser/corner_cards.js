// What is typed and pressed on the cards of shots: lengths, prompts, locks, and what is said of each.
const { quiet, run, write } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const TEXT = "a big yellow ball runs right\n4: a small red ring rests on grass\n7: a large blue ball rests on sand";

function read(page, name) {
  return page.evaluate(([type, of]) => String(window.app.graph.nodes.find((node) => node.type === type).widgets.find((one) => one.name === of).value), [SAMPLER, name]);
}

async function press(locator, key) {
  await locator.focus();
  await locator.page().keyboard.press(key);
}

function card(page, number) {
  return page.locator(`.sdvg-shot >> nth=${number - 1}`);
}

function lockOf(page, number) {
  return card(page, number).locator(".sdvg-shot-keep").evaluate((one) => [one.disabled, one.getAttribute("aria-pressed"), one.title]);
}

function outcomes(page) {
  return page.evaluate(() => [...document.querySelectorAll(".sdvg-squares button")].map((square) => square.dataset.outcome ?? null));
}

function nextRun(page) {
  return page.locator(".sdvg-next").textContent();
}

/** The details of all messages from now on. */
function hearMessages(page) {
  return page.evaluateHandle(() => {
    const { toast } = window.app.extensionManager;
    const { add } = toast;
    const details = [];
    toast.add = (message) => {
      details.push(message.detail);
      return add.call(toast, message);
    };
    return details;
  });
}

/** The last card locked by its button, the run of a video that is locked whole, and the lock given up by the first card's. */
async function lockLast(page) {
  const states = [await lockOf(page, 3)];
  await press(card(page, 3).locator(".sdvg-shot-keep"), " ");
  await page.waitForFunction((type) => window.app.graph.nodes.find((node) => node.type === type).widgets.find(({ name }) => name === "kept_blocks").value, SAMPLER);
  await quiet(page, 700);
  const lock = (await read(page, "kept_blocks")).split(":")[0];
  states.push(await lockOf(page, 3));
  const label = await card(page, 3).locator(".sdvg-shot-keep").textContent();
  const refused = await refuseSize(page);
  const looks = await card(page, 3).evaluate((one) => [one.querySelector(".sdvg-shot-take").disabled, getComputedStyle(one.querySelector("textarea")).opacity, one.querySelector(".sdvg-shot-take").title]);
  await run(page);
  await quiet(page, 700);
  const film = { outcomes: await outcomes(page), error: await page.locator(".sdvg-error").textContent(), next: await nextRun(page), time: await page.locator(".sdvg-time").textContent() };
  await press(card(page, 1).locator(".sdvg-shot-keep"), " ");
  await quiet(page, 700);
  return { states, lock, label, refused, looks, film, left: await read(page, "kept_blocks") };
}

/** Another width than the locked blocks have: what the strip says and marks, what a run is refused for, and the width set back. */
async function refuseSize(page) {
  const marked = () => page.evaluate(() => document.querySelectorAll(".sdvg-squares :is(.again, .uncertain, .old)").length);
  await write(page, SAMPLER, "width", 96);
  await quiet(page, 900);
  const seen = { next: await nextRun(page), marked: await marked() };
  await page.evaluate(() => window.app.queuePrompt(0, 1).catch(() => null));
  await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent);
  seen.error = await page.locator(".sdvg-error").textContent();
  seen.place = await page.evaluate(() => {
    const error = document.querySelector(".sdvg-error");
    return { title: error.title, above: Math.round(error.getBoundingClientRect().top - error.parentElement.getBoundingClientRect().top) };
  });
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("Escape"); // ComfyUI's own message
  await write(page, SAMPLER, "width", 64);
  await quiet(page, 900);
  return { ...seen, after: await nextRun(page), left: await page.locator(".sdvg-error").textContent() };
}

/** The block that the button below the film names as the video's length changes elsewhere; and a second shot removed. */
async function editLength(page) {
  const named = () => page.locator(".sdvg-more").textContent();
  await page.locator('.sdvg-squares [data-number="2"]').focus();
  await page.locator('.sdvg-squares [data-number="5"]').dispatchEvent("pointermove", { offsetX: 5 });
  const names = [await named()];
  await card(page, 3).locator("input").fill("4");
  await page.keyboard.press("Enter");
  await quiet(page);
  names.push(await named());
  await page.locator(".sdvg-squares").dispatchEvent("pointerleave"); // the film goes on
  await write(page, "SDVGPocketModels", "prompt", TEXT.split("\n").slice(0, 2).join("\n"));
  await quiet(page);
  await press(card(page, 2).locator(".sdvg-shot-top .sdvg-button"), "Enter");
  await press(page.getByRole("menuitem", { name: /^remove/ }), "Enter");
  await quiet(page);
  const left = await page.evaluate(() => [document.querySelectorAll(".sdvg-shot").length, document.querySelector(".sdvg-shots-button").getAttribute("aria-expanded")]);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await write(page, SAMPLER, "blocks", 9);
  await quiet(page, 700);
  return { names, left };
}

/** A length undone where it was typed, after Enter, after a step by key, and before it is entered. */
async function undoLength(page) {
  const length = card(page, 2).locator("input");
  const states = [];
  const undo = async () => {
    await page.keyboard.press("Control+z");
    await quiet(page, 700);
    states.push([await read(page, "blocks"), await length.inputValue()]);
  };
  await length.fill("5");
  await page.keyboard.press("Enter");
  await quiet(page);
  states.push([await read(page, "blocks"), await length.inputValue()]);
  await undo();
  await length.focus();
  await page.keyboard.press("ArrowUp");
  await quiet(page);
  states.push([await read(page, "blocks"), await length.inputValue()]);
  await undo();
  await length.fill("7");
  await undo();
  await page.keyboard.press("Escape");
  return states;
}

/** The first prompt emptied: what stays, and what is said. */
async function emptyFirst(page) {
  const messages = await hearMessages(page);
  await card(page, 1).locator("textarea").fill("");
  await page.keyboard.press("Enter");
  await quiet(page);
  return { messages: await messages.jsonValue(), prompt: await card(page, 1).locator("textarea").inputValue() };
}

/** Too many blocks, none, and letters as the length of a card; a prompt that is entered, and the focus then. */
async function typeOnCard(page) {
  const lengths = [];
  const messages = await hearMessages(page);
  for (const value of ["99999", "0", "-3", ""]) {
    const before = (await messages.jsonValue()).length;
    await card(page, 2).locator("input").fill(value);
    await page.keyboard.press("Enter");
    await quiet(page);
    lengths.push([await card(page, 2).locator("input").inputValue(), (await messages.jsonValue())[before]]);
  }
  await card(page, 2).locator("input").fill("3");
  await page.keyboard.press("Enter");
  await card(page, 2).locator("textarea").click();
  await page.keyboard.press("Enter");
  const focus = await page.evaluate(() => document.activeElement.className);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await write(page, SAMPLER, "blocks", 9);
  await quiet(page, 700);
  return { lengths, focus };
}

/** A take asked for twice, on a square and on a card; a line typed on a card that would name a block; a shot whose line gives a strength. */
async function pressInVain(page) {
  const messages = await hearMessages(page);
  await press(page.locator('.sdvg-squares [data-number="5"]'), "n");
  await page.keyboard.press("n");
  const seen = { square: await messages.jsonValue() };
  for (let i = 0; i < 2; i += 1) await press(card(page, 3).locator(".sdvg-shot-take"), "Enter");
  seen.card = (await messages.jsonValue()).slice(seen.square.length);
  const asked = (await messages.jsonValue()).length;
  await card(page, 2).locator("textarea").fill("a small red ring\nrests on grass\n8: fog");
  await page.keyboard.press("Enter");
  seen.line = (await messages.jsonValue()).slice(asked);
  seen.prompt = await card(page, 2).locator("textarea").inputValue();
  await write(page, "SDVGPocketModels", "prompt", TEXT.replace("4:", "4 strength 0.5:"));
  await quiet(page);
  seen.title = await card(page, 2).locator(".sdvg-shot-title").textContent();
  await card(page, 2).locator("input").fill("5");
  await write(page, SAMPLER, "takes", "9:2"); // of which the strip tells while the number is typed
  await quiet(page, 700);
  seen.length = await card(page, 2).locator("input").inputValue();
  await card(page, 2).locator("input").fill("3");
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await write(page, SAMPLER, "takes", "");
  await quiet(page, 700);
  return seen;
}

module.exports = { SAMPLER, TEXT, press, card, lockOf, outcomes, nextRun, hearMessages, lockLast, editLength, undoLength, emptyFirst, typeOnCard, pressInVain };
