// A workflow's file dropped on the canvas, as from a file manager, and run.
//
//     NODE_PATH=folder/with/playwright-core node drop.js OPTIONS        (see page.js)
//
// Further options: `file`: the workflow; `runs`: whether to run it.
const fs = require("node:fs");
const path = require("node:path");
const { main, run } = require("./page.js");

main(async (page, options) => {
  const file = { name: path.basename(options.file), text: fs.readFileSync(options.file, "utf8") };
  await page.evaluate(drop, file);
  await page.waitForFunction(() => window.app.graph.nodes.some((node) => node.type === "SDVGSpeculativeSampler"), null, { timeout: 30000 });
  await page.waitForTimeout(1000);
  const dropped = await page.evaluate(opened);
  if (!options.runs) return { dropped };
  await run(page);
  await page.waitForSelector("video", { timeout: 30000 });
  await page.waitForFunction(() => document.querySelector("video").duration > 0, null, { timeout: 30000 });
  return { dropped, ran: await page.evaluate(shown) };
});

/** Let a file fall onto the middle of the canvas. */
function drop({ name, text }) {
  const canvas = document.querySelector("#graph-canvas");
  const { x, y, width, height } = canvas.getBoundingClientRect();
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name, { type: "application/json" }));
  const where = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true, cancelable: true };
  for (const type of ["dragenter", "dragover", "drop"]) canvas.dispatchEvent(new DragEvent(type, { ...where, dataTransfer }));
}

function opened() {
  const known = window.LiteGraph.registered_node_types;
  const types = window.app.graph.nodes.map((node) => node.type);
  return {
    types,
    missing: types.filter((type) => !(type in known)),
    told: [...document.querySelectorAll(".p-toast-message")].map((toast) => toast.innerText),
  };
}

function shown() {
  return {
    fates: [...document.querySelectorAll(".sdvg-squares li")].map((li) => li.dataset.fate ?? null),
    seconds: document.querySelector("video").duration,
  };
}
