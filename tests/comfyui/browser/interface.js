// What an artist sees of a run, in one page: opens ComfyUI, loads and runs a small workflow, and prints what the nodes show.
//
//     NODE_PATH=folder/with/playwright-core node interface.js OPTIONS        (see page.js)
const { installContrast } = require("./contrast.js");
const { DRAFT, build, main, quiet, reload, run } = require("./page.js");
const { chooseExample, error, refuse, shownPrompt } = require("./messages.js");
const { changeAndCopy, leaveRunning, lookAtFilm } = require("./whose.js");

main(async (page, options) => {
  await page.evaluate(build, options);
  await quiet(page);
  const loaded = await page.evaluate(look);
  if (options.withoutOurs) return { loaded, done: await lookAfterRun(page) };
  const lengths = await page.evaluate(tryLengths);
  const example = await chooseExample(page);
  const refused = await refuse(page, options);
  const done = await lookAfterRun(page);
  const said = { cleared: await error(page), shown: await shownPrompt(page) };
  const readable = await inPalettes(page);
  const film = await changeAndCopy(page, done.workflow, options);
  const pestered = await page.evaluate(pester);
  const again = await comeBack(page, done.workflow);
  const live = await leaveRunning(page, done.workflow, options);
  return { loaded, lengths, example, refused, done, ...said, readable, film, ...pestered, ...again, live, outlived: await outlive(page) };
});

async function lookAfterRun(page) {
  await run(page);
  await pictured(page);
  return page.evaluate(look);
}

/**
 * Load the page anew; then open the workflow as if saved under another id, and take its run from the server's cache.
 */
async function comeBack(page, workflow) {
  await page.evaluate((saved) => window.app.loadGraphData(saved), workflow);
  await quiet(page, DRAFT);
  await reload(page);
  const reloaded = { ...(await page.evaluate(look)), film: await lookAtFilm(page) };
  const copied = { ...workflow, id: "22222222-3333-4444-8555-666666666666" };
  await page.evaluate((saved) => window.app.loadGraphData(saved), copied);
  await quiet(page, 2200); // see SETTLED in route_strip.js
  const opened = await page.evaluate(look);
  await run(page);
  await pictured(page);
  const known = () => [...document.querySelectorAll(".sdvg-squares button")].every((square) => square.dataset.outcome);
  await page.waitForFunction(known, null, { timeout: 60000 }).catch(() => {}); // the picture may be there before
  return { reloaded, opened, copied: await page.evaluate(look) };
}

/** The film of a page that is loaded anew, after other runs of a sampler with this id. */
async function outlive(page) {
  await quiet(page, DRAFT);
  await page.evaluate(runElsewhere);
  await reload(page);
  return lookAtFilm(page);
}

/** Run by a script, which names no workflow, and by another page, with other settings. */
async function runElsewhere() {
  const { app } = window;
  const { output } = await app.graphToPrompt();
  const sampler = app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler").id;
  for (const workflow of [{}, { id: app.graph.id }]) {
    Object.assign(output[sampler].inputs, { blocks: 1, seed: output[sampler].inputs.seed + 50 });
    const body = JSON.stringify({ prompt: output, client_id: "elsewhere", extra_data: { extra_pnginfo: { workflow } } });
    const { prompt_id: id } = await (await fetch("/api/prompt", { method: "POST", body })).json();
    const over = async () => id in (await (await fetch(`/api/history/${id}`)).json());
    while (!(await over())) await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Wait until the report's picture and record are loaded; if they never are, what is seen of them says so. */
async function pictured(page) {
  const loaded = () => {
    const report = window.app.graph.nodes.find((node) => node.type === "SDVGRouteReport");
    const record = document.querySelector(".sdvg-json textarea");
    const shown = report?.imgs?.length ?? document.querySelectorAll(`[data-node-id="${report?.id}"] img`).length;
    return Boolean(shown && (!record || record.value));
  };
  const soon = () => page.waitForFunction(loaded, null, { timeout: 60000 }).catch(() => {});
  await soon();
  await quiet(page, 500);
  await soon(); // a page that was loaded anew may set its nodes up twice
}

/** What sampler and report show, and what of it would be saved or sent. */
async function look() {
  const [sampler, report] = ["SDVGSpeculativeSampler", "SDVGRouteReport"].map((type) => window.app.graph.nodes.find((node) => node.type === type));
  const squares = [...document.querySelectorAll(".sdvg-squares button")].map((square) => ({
    outcome: square.dataset.outcome ?? null, text: square.textContent, title: square.title, label: square.getAttribute("aria-label"),
    colour: getComputedStyle(square).backgroundColor, width: square.getBoundingClientRect().width,
  }));
  const seen = (element, height) => Boolean(element?.checkVisibility() && element.getBoundingClientRect().height > height);
  const prompt = (await window.app.graphToPrompt()).output;
  const [fold, record] = [".sdvg-json summary", ".sdvg-json textarea"].map((of) => document.querySelector(of));
  return {
    squares,
    visible: seen(document.querySelector(".sdvg-route"), 20),
    legend: document.querySelector(".sdvg-legend")?.textContent,
    saved: sampler.serialize().widgets_values,
    sent: Object.keys(prompt[sampler.id].inputs),
    lines: sampler.widgets.filter((w) => w.name.includes("text")).map((w) => String(w.value)),
    size: [...sampler.size],
    notes: [...document.querySelectorAll(".sdvg-notes li")].map((note) => note.textContent),
    record: { text: record?.value, visible: seen(record, 50), fold: seen(fold, 15), saved: report.serialize().widgets_values ?? [], sent: Object.keys(prompt[report.id].inputs) },
    // The canvas renderer draws pictures itself, Nodes 2.0 has them as elements.
    pictures: report.imgs?.length ?? document.querySelectorAll(`[data-node-id="${report.id}"] img`).length,
    workflow: JSON.parse(JSON.stringify(window.app.graph.serialize())),
  };
}

/** What of our text is hardest to read, in a dark and a light palette: with a menu open, the record unfolded and its text gone. */
async function inPalettes(page) {
  const palette = (name) => page.evaluate((id) => window.app.extensionManager.setting.set("Comfy.ColorPalette", id), name);
  const worst = { sent: {} };
  await installContrast(page);
  await page.locator('.sdvg-squares [data-number="2"]').dispatchEvent("click");
  await page.evaluate(() => {
    document.querySelector(".sdvg-json details").setAttribute("open", "");
    document.querySelector(".sdvg-error").textContent = "an error";
  });
  for (const name of ["light", "arc", "solarized", "dark"]) {
    await palette(name);
    await quiet(page);
    worst[name] = await page.evaluate(contrasts);
    // Frontends say in different ways which palette is in force: on the body, on the page, or nowhere (1.58.1).
    await page.evaluate(() => document.querySelector(".dark-theme")?.classList.remove("dark-theme"));
    const { output } = await page.evaluate(() => window.app.graphToPrompt());
    worst.sent[name] = Object.values(output).find((one) => "theme" in one.inputs).inputs.theme;
  }
  await page.keyboard.press("Escape");
  return worst;
}

/** Of each text of ours that is seen: its contrast by WCAG 2.2, its size in pixels of the canvas, and what it says. */
function contrasts() {
  const contrast = window.contrastMeter();
  const grounds = (element) => {
    const colours = [[getComputedStyle(element).backgroundColor, 1]];
    for (let one = element.parentElement; one; one = one.parentElement) colours.unshift([getComputedStyle(one).backgroundColor, 1]);
    // The canvas draws the node below our elements; in Nodes 2.0 it is an element.
    const drawn = !element.closest("[data-node-id]") && element.closest(".sdvg-route, .sdvg-json");
    return drawn ? [[window.LiteGraph.NODE_DEFAULT_BGCOLOR, 1], ...colours.slice(-4)] : colours;
  };
  const opacity = (element) => (element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1);
  const measure = (element, text) => {
    const style = getComputedStyle(element);
    return [contrast(grounds(element), [style.color, opacity(element)]), parseFloat(style.fontSize), text];
  };
  const texts = [...document.querySelectorAll(".sdvg-route, .sdvg-route *, .sdvg-json, .sdvg-json *, .sdvg-menu, .sdvg-menu *")];
  const own = (element) => [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent).join("").trim();
  const seen = texts.filter((element) => (own(element) || element.value) && element.checkVisibility({ checkOpacity: true }) && !element.matches(".sdvg-status"));
  return seen.map((element) => measure(element, own(element) || "record"));
}

/** What the sampler calls its length with other numbers of blocks, and what of it the page shows; ends as it began. */
async function tryLengths() {
  const sampler = window.app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler");
  const widget = sampler.widgets.find((one) => one.name === "blocks");
  const element = document.querySelector(`[data-node-id="${sampler.id}"]`);
  const lengths = [];
  for (const blocks of [1, 21, 9]) {
    widget.value = blocks;
    widget.callback?.(blocks);
    for (let i = 0; i < 600 && element && !element.innerText.includes(widget.label); i += 1) await new Promise((resolve) => setTimeout(resolve, 100));
    lengths.push([widget.label, element ? element.innerText.includes(widget.label) : null]);
  }
  return lengths;
}

/** News of nodes that are not here, a step undone, another workflow, and one from a newer version of the pack. */
async function pester() {
    const { app } = window;
    const { api } = window.comfyAPI.api;
    const outcomes = () => [...document.querySelectorAll(".sdvg-squares button")].map((square) => square.dataset.outcome ?? null);
    const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const told = () => [...document.querySelectorAll(".p-toast-message, [data-testid=toast]")].map((toast) => toast.innerText);
    const event = { run: "of nobody", number: 1, of: 3, outcome: "kept", score: null, seconds: 1, text: "" };
    const other = app.graph.nodes.find((node) => node.type === "SDVGRouteReport");
    const sampler = app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler");
    for (const node of ["999", `${other.id}:7`, String(other.id), "", null]) api.dispatchCustomEvent("sdvg.block", { ...event, node });
    const elsewhere = { ...event, node: String(sampler.id), workflow: "11111111-2222-4333-8444-555555555555" };
    api.dispatchCustomEvent("sdvg.block", elsewhere);
    api.dispatchCustomEvent("executed", { node: String(sampler.id), output: { sdvg_route: [elsewhere] }, prompt_id: "" });
    const strayed = outcomes();
    const saved = JSON.parse(JSON.stringify(app.graph.serialize()));
    await app.loadGraphData(JSON.parse(JSON.stringify(saved)));
    await wait(800);
    const reopened = outcomes();
    const quiet = told();
    const newer = JSON.parse(JSON.stringify({ ...saved, id: elsewhere.workflow }));
    newer.nodes.find((node) => String(node.id) === String(sampler.id)).properties.ver = "9.10.0";
    await app.loadGraphData(newer);
    await wait(800);
    for (let i = 0; i < 600 && (!told().length || outcomes().some(Boolean)); i += 1) await wait(100);
    const versions = app.graph.serialize().nodes.map((node) => [node.type, node.properties.cnr_id, node.properties.ver]);
    return { strayed, reopened, elsewhere: outcomes(), quiet, told: told(), versions };
}
