// A subgraph blueprint's file dropped on the canvas: one node; what the page then sends, and shows.
//
//     NODE_PATH=folder/with/playwright-core node blueprints.js OPTIONS        (see page.js)
//
// Further options: `files`: the blueprints.
const fs = require("node:fs");
const path = require("node:path");
const { drop, main, quiet } = require("./page.js");

main(async (page, options) => {
  const placed = {};
  for (const file of options.files) {
    const name = path.basename(file, ".json");
    await page.evaluate(() => window.app.graph.clear());
    await page.evaluate(drop, { name: path.basename(file), text: fs.readFileSync(file, "utf8") });
    await page.waitForFunction((title) => window.app.graph.nodes[0]?.title === title, name);
    await quiet(page);
    placed[name] = await page.evaluate(shown);
  }
  return { placed };
});

async function shown() {
  const [node] = window.app.graph.nodes;
  return {
    outputs: node.outputs.map((output) => output.name),
    widgets: node.widgets.map((widget) => widget.name),
    prompt: (await window.app.graphToPrompt()).output,
  };
}
