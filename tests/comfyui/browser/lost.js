// A live session whose server is killed in the middle, and comes back: once while the page stays, once while it is away.
//
//     NODE_PATH=folder/with/playwright-core node lost.js OPTIONS        (see page.js; `pid`: a file that names the server's process)
const { readFileSync } = require("fs");
const { build, main, quiet, write } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const POCKET = "SDVGPocketModels";
const WORDS = "a small red ring rests on grass"; // as the pocket models know them

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await quiet(page, 500);
  const before = await graph(page);
  const stayed = await lose(page, options, async () => {});
  stayed.items = await items(page);
  stayed.undone = await undo(page);
  const left = await lose(page, options, async () => {
    await page.goto("about:blank");
    await page.addInitScript(openSlowly);
  });
  left.undone = await undo(page);
  const changed = await lose(page, options, () => write(page, SAMPLER, "blocks", 33));
  return { before, stayed, left, changed };
});

/** Have ComfyUI take its time to open a workflow, as on a busy machine. */
function openSlowly() {
  const MS = 2500;
  const waiting = setInterval(() => {
    if (!window.app?.registerExtension) return;
    clearInterval(waiting);
    window.app.registerExtension({ name: "slow", afterConfigureGraph: () => new Promise((resolve) => setTimeout(resolve, MS)) });
  });
}

/** Begin a session, steer it, kill its server, and do something before it is back. What the page shows then, once it has settled it. */
async function lose(page, { url, pid }, meanwhile) {
  await page.locator(".sdvg-live-start").click();
  await made(page, 2);
  await page.locator(".sdvg-live-row input").fill(WORDS);
  const answer = page.waitForResponse((one) => one.url().endsWith("/sdvg/steer") && one.request().postDataJSON().act === "prompt");
  await page.keyboard.press("Enter");
  const { block, text } = await (await answer).json();
  await made(page, block);
  const known = readFileSync(pid, "ascii");
  process.kill(Number(known), "SIGKILL");
  const blocks = await page.evaluate(() => document.querySelectorAll(".living .sdvg-squares .made").length);
  await meanwhile();
  while (readFileSync(pid, "ascii") === known) await page.waitForTimeout(100);
  if (page.url() === "about:blank") await page.goto(url, { waitUntil: "domcontentloaded" });
  await page.waitForFunction(() => document.querySelector(".sdvg-error")?.textContent);
  await quiet(page, 500);
  const dialog = await page.evaluate(() => [...document.querySelectorAll("dialog.sdvg-text :is(p, textarea)")].map((one) => one.value ?? one.textContent));
  if (dialog.length) await page.keyboard.press("Escape");
  const says = await page.evaluate(() => document.querySelector(".sdvg-error").textContent);
  return { block, text, blocks, says, dialog, graph: await graph(page) };
}

/** Until so many blocks are made. */
function made(page, count) {
  return page.waitForFunction((least) => document.querySelectorAll(".living .sdvg-squares .made").length >= least, count);
}

/** What the menu of a square offers. */
async function items(page) {
  await page.locator('.sdvg-squares [data-number="1"]').focus();
  await page.keyboard.press("Enter");
  const seen = await page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
  await page.keyboard.press("Escape");
  return seen;
}

async function undo(page) {
  await page.evaluate(() => window.app.extensionManager.workflow.activeWorkflow.changeTracker.undo());
  await quiet(page, 700);
  return graph(page);
}

function graph(page) {
  return page.evaluate(([sampler, pocket]) => {
    const value = (type, name) => window.app.graph.nodes.find((node) => node.type === type).widgets.find((widget) => widget.name === name).value;
    const of = ["seed", "takes", "blocks", "live"].map((name) => [name, value(sampler, name)]);
    return { ...Object.fromEntries(of), prompt: value(pocket, "prompt") };
  }, [SAMPLER, POCKET]);
}
