// What an artist sees of a run: opens ComfyUI, loads and runs a small workflow, and prints what the sampler shows.
//
//     NODE_PATH=folder/with/playwright-core node interface.js OPTIONS        (see page.js)
const { build, main, run } = require("./page.js");

main(async (page, options) => {
  await page.evaluate(build, options);
  await page.waitForTimeout(1000);
  const loaded = await page.evaluate(look);
  await run(page);
  await page.waitForTimeout(500);
  const done = await page.evaluate(look);
  return { loaded, done, ...(await page.evaluate(pester)) };
});

/** What the sampler shows, and what of it would be saved or sent. */
async function look() {
  const sampler = window.app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler");
  const squares = [...document.querySelectorAll(".sdvg-squares li")].map((li) => ({
    fate: li.dataset.fate ?? null, text: li.textContent, title: li.title, label: li.getAttribute("aria-label"),
    colour: getComputedStyle(li).backgroundColor, width: li.getBoundingClientRect().width,
  }));
  const strip = document.querySelector(".sdvg-route");
  const prompt = (await window.app.graphToPrompt()).output;
  return {
    squares,
    visible: Boolean(strip?.checkVisibility() && strip.getBoundingClientRect().height > 20),
    legend: document.querySelector(".sdvg-legend")?.textContent,
    saved: sampler.serialize().widgets_values,
    sent: Object.keys(prompt[sampler.id].inputs),
    lines: sampler.widgets.filter((w) => w.name.includes("text")).map((w) => String(w.value)),
    size: [...sampler.size],
  };
}

/** News of nodes that are not here, a step undone, and another workflow. */
async function pester() {
    const { app } = window;
    const { api } = window.comfyAPI.api;
    const fates = () => [...document.querySelectorAll(".sdvg-squares li")].map((li) => li.dataset.fate ?? null);
    const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const event = { number: 1, of: 3, fate: "kept", score: null, seconds: 1, text: "" };
    const other = app.graph.nodes.find((node) => node.type === "SDVGRouteReport");
    const sampler = app.graph.nodes.find((node) => node.type === "SDVGSpeculativeSampler");
    for (const node of ["999", `${other.id}:7`, String(other.id), "", null]) api.dispatchCustomEvent("sdvg.block", { ...event, node });
    const elsewhere = { ...event, node: String(sampler.id), workflow: "11111111-2222-4333-8444-555555555555" };
    api.dispatchCustomEvent("sdvg.block", elsewhere);
    const strayed = fates();
    const saved = JSON.parse(JSON.stringify(app.graph.serialize()));
    await app.loadGraphData(JSON.parse(JSON.stringify(saved)));
    await wait(800);
    const reopened = fates();
    await app.loadGraphData({ ...saved, id: elsewhere.workflow });
    await wait(800);
    return { strayed, reopened, elsewhere: fates() };
}

