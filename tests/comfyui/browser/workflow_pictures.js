// Pictures of shared workflows, as ComfyUI's list of templates shows them: opened, but not run.
//
//     NODE_PATH=folder/with/playwright-core node workflow_pictures.js OPTIONS    (see page.js; take_pictures.py calls it)
//
// Further options: `files`: the workflows; `pictures`: the folder for the pictures, which get the workflows' names.
const fs = require("node:fs");
const path = require("node:path");
const { main, quiet } = require("./page.js");

const SCALE = 0.8;
const CORNER = { x: 110, y: 150 }; // of the window, clear of ComfyUI's own panels
const ROOM = { width: 220, height: 330 };
const APP = { x: 0, y: 38, width: 1400, height: 754 }; // without the tabs of other workflows

main(async (page, options) => {
  const sizes = {};
  for (const file of options.files) {
    const name = path.basename(file, ".json");
    await page.setViewportSize({ width: APP.width, height: APP.y + APP.height });
    await page.evaluate(([saved, called]) => window.app.loadGraphData(saved, true, true, called), [JSON.parse(fs.readFileSync(file, "utf8")), name]);
    await quiet(page, 1500);
    await page.keyboard.press("Escape");
    const target = { path: path.join(options.pictures, `${name}.png`), clip: APP };
    if (await page.evaluate(() => !window.app.graph.extra.linearMode)) {
      target.clip = await page.evaluate(show, { scale: SCALE, corner: CORNER });
      await page.setViewportSize({ width: Math.ceil(target.clip.width) + ROOM.width, height: Math.ceil(target.clip.height) + ROOM.height });
      await page.evaluate(show, { scale: SCALE, corner: CORNER });
    }
    await page.mouse.move(5, 600);
    await quiet(page, 2500);
    await page.screenshot(target);
    sizes[name] = await page.evaluate(sizesOf);
  }
  return { sizes };
});

/** Show all groups but the notes' (in grey), which are there to be read, and return where they are. */
function show({ scale, corner }) {
  const { app } = window;
  const boxes = app.graph.groups.filter((group) => group.color !== "#bbb").map((group) => [...group.pos, ...group.size]);
  const [left, top] = [0, 1].map((i) => Math.min(...boxes.map((box) => box[i])) - 20);
  const [right, bottom] = [0, 1].map((i) => Math.max(...boxes.map((box) => box[i] + box[i + 2])) + 20);
  app.canvas.ds.scale = scale;
  app.canvas.ds.offset = [corner.x / scale - left, corner.y / scale - top];
  app.canvas.setDirty(true, true);
  return { ...corner, width: (right - left) * scale, height: (bottom - top) * scale };
}

/** The size of each node as it is, and the least it would need. */
function sizesOf() {
  return window.app.graph.nodes.map((node) => [node.type, [...node.size], [...node.computeSize()]]);
}
