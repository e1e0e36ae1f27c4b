// Whose film a strip shows, and its forecast: a workflow that was run, its seed and tau changed, and copies beside it.
const { quiet, write } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const ROUTER = "PlannedRouter";
// ms, after two and all of the times at which a strip (route_strip.js) looks whether what it shows is its workflow's
const SOON = 700;
const SETTLED = 2200;

/** What is shown after the run of `saved`, with other settings, and in other tabs; ends in its own tab as it began. */
async function changeAndCopy(page, saved, options) {
  await page.waitForFunction(() => document.querySelector(".sdvg-next").textContent);
  const made = await lookAtFilm(page);
  const own = await openTab(page);
  const changed = [];
  for (const [type, name, value] of [
    [ROUTER, "plan", "raaraaraa"], [ROUTER, "plan", options.script],
    [SAMPLER, "seed", options.seed + 1], [SAMPLER, "takes", "9:2"], [SAMPLER, "takes", ""],
  ]) {
    await edit(page, type, name, value);
    changed.push((await lookAtFilm(page)).next);
  }
  const other = await open(page, withSeed(saved, options.seed + 2));
  const same = await open(page, saved);
  const elsewhere = await open(page, { ...withSeed(saved, options.seed + 2), id: "33333333-3333-4444-8555-666666666666" }, SETTLED);
  await own.click();
  await quiet(page, SETTLED);
  const opened = { other, same, elsewhere, own: await lookAtFilm(page) };
  await edit(page, SAMPLER, "seed", options.seed);
  const back = (await lookAtFilm(page)).next;
  return { made, changed, opened, back, before: await movingSeed(page), forgotten: await forget(page) };
}

function withSeed(saved, seed) {
  const copy = JSON.parse(JSON.stringify(saved));
  const { widgets_values: values } = copy.nodes.find((node) => node.type === "SDVGSpeculativeSampler");
  values[values.findIndex((value) => value === "fixed") - 1] = seed;
  return copy;
}

function lookAtFilm(page) {
  return page.evaluate(() => ({
    outcomes: [...document.querySelectorAll(".sdvg-squares button")].map((square) => square.dataset.outcome ?? null),
    next: document.querySelector(".sdvg-next").textContent,
    stop: document.querySelector(".sdvg-stop").checkVisibility(),
    picture: Boolean(window.app.graph.nodes.find((node) => node.type === "SDVGRouteReport").imgs?.length),
  }));
}

/** The open workflow's tab at the top of the page, by its name. */
async function openTab(page) {
  const name = await page.evaluate(() => window.app.extensionManager.workflow.activeWorkflow.filename);
  return page.locator(".workflow-tabs .p-togglebutton, .workflow-tabs [data-testid]").filter({ hasText: new RegExp(`^\\W*${name.replace(/[()]/g, "\\$&")}\\W*$`) }).first();
}

async function open(page, workflow, settled = SOON) {
  await page.evaluate((data) => window.app.loadGraphData(data), workflow);
  await quiet(page, settled);
  return lookAtFilm(page);
}

/** Change a widget as a hand would, and let ComfyUI notice. */
async function edit(page, type, name, value) {
  const forecast = page.waitForResponse((one) => one.url().includes("/sdvg/runs?"), { timeout: 30000 }).catch(() => {});
  await write(page, type, name, value);
  await forecast;
  await quiet(page);
}

/** The control beside the seed set to count up, before a run and after one. */
async function movingSeed(page) {
  const control = (value) => page.evaluate(([type, news]) => {
    window.app.graph.nodes.find((node) => node.type === type).widgets.find((one) => one.name === "seed").linkedWidgets[0].value = news;
  }, [SAMPLER, value]);
  const mode = (value) => page.evaluate((news) => window.app.extensionManager.setting.set("Comfy.WidgetControlMode", news), value);
  await control("increment");
  await mode("before");
  await edit(page, SAMPLER, "takes", "");
  const { next } = await lookAtFilm(page);
  await control("fixed");
  await mode("after");
  return next;
}

/** The page after its server was started again. */
async function forget(page) {
  const nothing = (route) => route.fulfill({ json: { after: 0, newest: 0, known: [], runs: [], asked: {}, loading: {}, decoding: {} } });
  await page.route("**/sdvg/runs?*", nothing);
  await edit(page, SAMPLER, "takes", "9:2");
  const { next } = await lookAtFilm(page);
  await page.unroute("**/sdvg/runs?*", nothing);
  await edit(page, SAMPLER, "takes", "");
  return next;
}

/** A copy with other settings, opened while a long run goes on; and the tab of that run afterwards. */
async function leaveRunning(page, saved, { seed }) {
  const long = withSeed(saved, seed + 5);
  await open(page, long);
  await edit(page, SAMPLER, "blocks", 200); // it goes on meanwhile, however busy the machine is
  await edit(page, ROUTER, "plan", "r".repeat(200));
  await page.evaluate(() => { window.app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler").widgets.find((one) => one.name === "seed").linkedWidgets[0].value = "randomize"; });
  const own = await openTab(page);
  await page.evaluate(() => void window.app.queuePrompt(0, 1));
  await page.waitForFunction(() => document.querySelector(".sdvg-stop").checkVisibility()); // not the film before
  const made = (number) => page.waitForFunction((least) => document.querySelectorAll(".sdvg-squares .made").length >= least, number);
  await made(2);
  const going = await lookAtFilm(page);
  const copy = await open(page, withSeed(saved, seed + 6));
  await own.click();
  await quiet(page, SOON);
  await made(going.outcomes.filter(Boolean).length + 1);
  const back = await lookAtFilm(page);
  await page.locator(".sdvg-stop").click();
  await page.waitForFunction(() => !document.querySelector(".sdvg-stop").checkVisibility());
  await quiet(page);
  return { going, copy, back, done: await lookAtFilm(page) };
}

module.exports = { changeAndCopy, leaveRunning, lookAtFilm };
