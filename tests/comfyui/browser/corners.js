// What is rare on a page: copies of a sampler, one in a subgraph or bypassed, words that are drawn, values of another version, and
// a server that was started again.
//
//     NODE_PATH=folder/with/playwright-core node corners.js OPTIONS        (see page.js)
const { build, main, quiet, run, write } = require("./page.js");
const { card, editLength, emptyFirst, hearMessages, lockLast, lockOf, nextRun, outcomes, press, pressInVain, SAMPLER, TEXT, typeOnCard, undoLength } = require("./corner_cards.js");

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await quiet(page);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await run(page);
  await page.waitForFunction(() => document.querySelector(".sdvg-next").textContent);
  await quiet(page);
  const prompted = await typeInPrompt(page);
  const taken = await makeTakes(page, options);
  const locked = await lockLast(page);
  const typed = await typeOnCard(page);
  const told = await pressInVain(page);
  const undone = await undoLength(page);
  const emptied = await emptyFirst(page);
  const edited = await editLength(page);
  const until = await runUntil(page);
  const typedNumbers = await typeNumbers(page, options);
  const forgotten = await restartServer(page);
  const drawn = await drawWords(page);
  const copied = await copySampler(page);
  const wrapped = await lookAtCards(page);
  const resized = await resize(page);
  const wrong = await openWrong(page);
  const bypassed = await bypass(page);
  const restyled = await restyleClip(page);
  const extended = await extendClip(page);
  const inside = await putInside(page);
  return { prompted, taken, locked, typed, told, undone, emptied, edited, until, typedNumbers, restyled, forgotten, drawn, copied, wrapped, resized, wrong, bypassed, extended, inside };
});

/** What the strip says of the next run while a prompt is typed, without a click elsewhere. */
async function typeInPrompt(page) {
  const nextRun = () => document.querySelector(".sdvg-next").textContent;
  const before = await page.evaluate(nextRun);
  for (const box of await page.locator("textarea").all()) {
    const isOurs = await box.evaluate((element) => element.closest('[class^="sdvg-"]') !== null);
    if (isOurs || (await box.inputValue()) !== TEXT) continue;
    await box.evaluate((element) => element.focus());
    await page.keyboard.press("Control+End");
    await page.keyboard.type(" slowly");
    break;
  }
  await page.waitForFunction((was) => !["", was].includes(document.querySelector(".sdvg-next").textContent), before, { timeout: 30000 }).catch(() => null);
  const after = await page.evaluate(nextRun);
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await quiet(page);
  return { before, after };
}

/** Takes asked for with a direction that is not run yet, of which another follows; of runs that are interrupted; of runs that are refused. */
async function makeTakes(page, { url }) {
  const square = (number) => page.locator(`.sdvg-squares [data-number="${number}"]`);
  const labels = () => page.evaluate(() => [...document.querySelectorAll(".sdvg-take")].map((cell) => cell.getAttribute("aria-label")));
  const settled = () => page.waitForFunction(() => ![...document.querySelectorAll(".sdvg-take")].some((cell) => cell.ariaLabel.endsWith("being made")), null, { timeout: 60000 }).catch(() => null);
  await press(square(1), "d");
  await press(square(2), "c");
  await press(square(1), ".");
  await settled();
  await quiet(page);
  const seen = { changed: await labels() };
  let queued = 0;
  const breakOff = async (route) => { // as the last of three waits for the others
    if (route.request().method() !== "POST") return route.continue();
    const response = await route.fetch();
    await route.fulfill({ response });
    queued += 1;
    if (queued === 3) await page.request.post(`${url}/api/queue`, { data: { clear: true } });
    if (queued === 3) await page.request.post(`${url}/api/interrupt`);
    return undefined;
  };
  await page.route("**/api/prompt", breakOff);
  await press(square(9), "c");
  await page.waitForFunction(() => document.querySelectorAll(".sdvg-take").length === 4);
  await settled();
  await page.unroute("**/api/prompt", breakOff);
  seen.interrupted = await labels();
  await write(page, SAMPLER, "kept_blocks", "of no run");
  await press(square(5), "c");
  await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent);
  await settled();
  seen.refused = await labels();
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("Escape"); // ComfyUI's own message, and the sheet
  await write(page, SAMPLER, "kept_blocks", "");
  await quiet(page, 900);
  return seen;
}

/** What the strip says of a run up to a block beyond the video, and up to one of its own. */
async function runUntil(page) {
  const sentences = [];
  for (const block of [12, 5, 0]) {
    await write(page, SAMPLER, "until_block", block);
    await quiet(page, 900);
    sentences.push(await nextRun(page));
  }
  return sentences;
}

/** What the strip says in Nodes 2.0 of a seed and a length that are typed and confirmed by a key, and set back so. */
async function typeNumbers(page, { vue, seed }) {
  const draw = async (on) => {
    await page.evaluate((value) => window.app.extensionManager.setting.set("Comfy.VueNodes.Enabled", value), on);
    await quiet(page, 700);
  };
  await draw(true);
  const node = await page.evaluate((type) => window.app.graph.nodes.find((one) => one.type === type).id, SAMPLER);
  const boxes = page.locator(`[data-node-id="${node}"] input`);
  const sentences = [];
  for (const [value, text, key] of [
    [seed, String(seed + 5), "Enter"], [seed + 5, String(seed), "Tab"], [9, "", "ArrowUp"], [10, "", "ArrowDown"],
  ]) {
    const before = await nextRun(page);
    const values = await boxes.evaluateAll((all) => all.map((box) => Number(box.value.replace(/\D/g, ""))));
    await boxes.nth(values.indexOf(value)).focus();
    if (text) await page.keyboard.press("Control+a");
    await page.keyboard.type(text);
    await page.keyboard.press(key);
    await page.waitForFunction((was) => !["", was].includes(document.querySelector(".sdvg-next").textContent), before, { timeout: 20000 }).catch(() => null);
    sentences.push(await nextRun(page));
  }
  await draw(Boolean(vue));
  return sentences;
}

/** A clip to restyle, wired in: whether its blocks can be locked, on a card and in a square's menu. */
async function restyleClip(page) {
  const id = await page.evaluate((type) => {
    const { app, LiteGraph } = window;
    const start = LiteGraph.createNode("SDVGStart");
    app.graph.add(start);
    const use = start.widgets.find(({ name }) => name === "use_as");
    use.value = "restyle";
    use.callback?.("restyle", app.canvas, start);
    const sampler = app.graph.nodes.find((node) => node.type === type);
    start.connect(0, sampler, sampler.inputs.findIndex(({ name }) => name === "start"));
    const { changeTracker } = app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
    return start.id;
  }, SAMPLER);
  await quiet(page, 900);
  const lock = await lockOf(page, 1);
  await page.locator('.sdvg-squares [data-number="4"]').click({ button: "right" });
  const menu = await page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
  await page.keyboard.press("Escape");
  await page.evaluate((start) => window.app.graph.remove(window.app.graph.getNodeById(start)), id);
  await quiet(page, 900);
  return { lock, menu };
}

/** The page as the server no longer has the run. */
async function restartServer(page) {
  const empty = async (route) => {
    const answer = await (await route.fetch()).json();
    const forecast = Object.fromEntries(Object.keys(answer.forecast).map((id) => [id, {}]));
    await route.fulfill({ json: { ...answer, after: 0, newest: 0, known: [], runs: [], forecast } });
  };
  await page.route("**/sdvg/runs?*", empty);
  await write(page, SAMPLER, "takes", "9:2");
  await quiet(page, 900);
  const seen = { lock: await lockOf(page, 1), next: await page.locator(".sdvg-next").textContent() };
  await page.unroute("**/sdvg/runs?*", empty);
  await write(page, SAMPLER, "takes", "");
  await quiet(page, 900);
  return seen;
}

/** A prompt of which ComfyUI draws a word for every run: what the server is asked, and the forecast. */
async function drawWords(page) {
  const texts = [];
  const hear = (request) => {
    if (request.method() !== "POST" || !request.url().includes("/sdvg/runs?")) return;
    const nodes = Object.values(JSON.parse(request.postData()));
    texts.push(nodes.find((node) => node.class_type === "SDVGPocketModels").inputs.prompt);
  };
  page.on("request", hear);
  await write(page, "SDVGPocketModels", "prompt", "a {big|small} yellow ball runs right");
  await quiet(page, 900);
  await write(page, SAMPLER, "takes", "9:2");
  await quiet(page, 900);
  page.off("request", hear);
  const next = await page.locator(".sdvg-next").textContent();
  await write(page, SAMPLER, "takes", "");
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await quiet(page, 900);
  return { texts: [...new Set(texts)], next };
}

/** A copy of the sampler with the same wires, and what its strip shows. */
async function copySampler(page) {
  const id = await page.evaluate((type) => {
    const { app, LiteGraph } = window;
    const node = app.graph.nodes.find((one) => one.type === type);
    const copy = LiteGraph.createNode(type);
    app.graph.add(copy);
    copy.pos = [node.pos[0], node.pos[1] + node.size[1] + 80];
    for (const widget of copy.widgets) {
      const source = node.widgets.find(({ name }) => name === widget.name);
      if (source && widget.serialize !== false) widget.value = source.value;
    }
    node.inputs.forEach((input, slot) => {
      const link = input.link && app.graph.links.get(input.link);
      if (link) app.graph.getNodeById(link.origin_id).connect(link.origin_slot, copy, slot);
    });
    const { changeTracker } = app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
    return copy.id;
  }, SAMPLER);
  await quiet(page, 1500);
  const messages = await hearMessages(page);
  await card(page, 1).locator("textarea").fill("a small red box drifts left");
  await page.keyboard.press("Enter");
  await quiet(page);
  const shared = await messages.jsonValue();
  await write(page, "SDVGPocketModels", "prompt", TEXT);
  await quiet(page, 900);
  const seen = await page.evaluate((copy) => {
    const strip = window.app.graph.getNodeById(copy).widgets.find(({ name }) => name === "route").element;
    return { outcomes: [...strip.querySelectorAll(".sdvg-squares button")].map((one) => one.dataset.outcome ?? null), next: strip.querySelector(".sdvg-next").textContent };
  }, id);
  await page.evaluate((copy) => window.app.graph.remove(window.app.graph.getNodeById(copy)), id);
  await quiet(page, 700);
  return { ...seen, shared };
}

/** Whether every card lies within its strip, and can be scrolled to. */
function lookAtCards(page) {
  return page.evaluate(() => {
    const list = document.querySelector(".sdvg-shots");
    const box = list.getBoundingClientRect();
    const cards = [...document.querySelectorAll(".sdvg-shot:not([hidden])")].map((one) => one.getBoundingClientRect());
    return { inside: cards.map(({ left, right }) => left >= box.left && right <= box.right + 1), rows: new Set(cards.map(({ top }) => Math.round(top))).size, wide: list.scrollWidth <= list.clientWidth };
  });
}

/** Squares with their pictures and numbers as the video is made longer and shorter again. */
async function resize(page) {
  const look = () => page.evaluate(() => {
    const squares = [...document.querySelectorAll(".sdvg-squares button")];
    const pictures = squares.filter((square) => square.querySelector("canvas:not(.blank)")).length;
    return { count: squares.length, pictures, size: parseFloat(getComputedStyle(squares.at(-1)).fontSize) };
  });
  const states = [await look()];
  for (const blocks of [60, 9, 3, 9]) {
    await write(page, SAMPLER, "blocks", blocks);
    await quiet(page, 700);
    states.push(await look());
  }
  return states;
}

/** A router as another version saved it, whose route this version lacks. */
async function openWrong(page) {
  const saved = await page.evaluate(() => {
    const { app } = window;
    window.messages = [];
    const { toast } = app.extensionManager;
    const { add } = toast;
    toast.add = (message) => { window.messages.push(message.detail ?? message.summary); return add.call(toast, message); };
    window.saved = JSON.stringify(app.graph.serialize());
    const graph = JSON.parse(window.saved);
    const router = graph.nodes.find((node) => node.type === "SDVGQualityRouter");
    router.widgets_values = [router.widgets_values[0], "newest", "min", false, 1, "default", "auto"];
    return graph;
  });
  await page.evaluate((graph) => window.app.loadGraphData(graph), saved);
  await quiet(page, 900);
  const seen = await page.evaluate(async () => {
    const router = window.app.graph.nodes.find((node) => node.type === "SDVGQualityRouter");
    return { values: Object.fromEntries(router.widgets.map(({ name, value }) => [name, value])), messages: window.messages };
  });
  await page.evaluate(() => window.app.loadGraphData(JSON.parse(window.saved)));
  await quiet(page, 2200);
  return seen;
}

/** What a strip says as its sampler is bypassed, and a report needs it. */
async function bypass(page) {
  const mode = (value) => page.evaluate(([type, news]) => { window.app.graph.nodes.find((node) => node.type === type).mode = news; }, [SAMPLER, value]);
  await mode(4);
  await page.evaluate(() => window.app.queuePrompt(0, 1).catch(() => {}));
  await page.waitForFunction(() => document.querySelector(".sdvg-error").textContent);
  const said = await page.locator(".sdvg-error").textContent();
  await page.keyboard.press("Escape");
  await mode(0);
  return said;
}

/** A clip wired in, before and after a run that tells how many blocks it has: the cards, and what a square offers. */
async function extendClip(page) {
  const saved = await page.evaluate((type) => {
    const { app, LiteGraph } = window;
    const graph = JSON.stringify(app.graph.serialize());
    const [video, start] = ["LoadVideo", "SDVGStart"].map((kind) => LiteGraph.createNode(kind));
    for (const node of [video, start]) app.graph.add(node);
    const write = (node, name, value) => {
      const widget = node.widgets.find((one) => one.name === name);
      widget.value = value;
      widget.callback?.(value, app.canvas, node);
    };
    write(video, "file", "clip.mp4");
    write(start, "use_as", "extend");
    video.connect(0, start, start.inputs.findIndex(({ name }) => name === "video"));
    const sampler = app.graph.nodes.find((node) => node.type === type);
    start.connect(0, sampler, sampler.inputs.findIndex(({ name }) => name === "start"));
    return graph;
  }, SAMPLER);
  const look = () => page.evaluate(() => ({
    disabled: document.querySelector(".sdvg-shots-button").disabled,
    title: document.querySelector(".sdvg-shots-button").title,
    cards: [...document.querySelectorAll(".sdvg-shot:not([hidden]) .sdvg-shot-title")].map((one) => one.textContent),
    from: [...document.querySelectorAll(".sdvg-squares li")].map((one) => one.dataset.from),
  }));
  await write(page, SAMPLER, "blocks", 6);
  await quiet(page, 700);
  const before = await look();
  await run(page);
  await page.waitForFunction(() => document.querySelector(".sdvg-next").textContent);
  await quiet(page, 700);
  const after = await look();
  after.clip = await page.evaluate(async () => {
    const { runs } = await (await window.app.api.fetchApi("/sdvg/runs")).json();
    return runs.at(-1).done.clip_frames ?? 0;
  });
  await page.locator('.sdvg-squares [data-number="4"]').click({ button: "right" });
  const menu = await page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
  await page.keyboard.press("Escape");
  await page.evaluate((graph) => window.app.loadGraphData(JSON.parse(graph)), saved);
  await quiet(page, 2200);
  return { before, after, menu };
}

/** The sampler put into a subgraph, which is opened. */
async function putInside(page) {
  await page.evaluate((type) => {
    const { app } = window;
    const node = app.graph.nodes.find((one) => one.type === type);
    const { subgraph } = app.graph.convertToSubgraph(new Set([node]));
    app.canvas.setGraph(subgraph);
  }, SAMPLER);
  await quiet(page, 1500);
  return page.evaluate((type) => {
    const node = window.app.canvas.graph.nodes.find((one) => one.type === type);
    const strip = node.widgets.find(({ name }) => name === "route").element;
    return { shots: !strip.querySelector(".sdvg-shots-button").hidden, cards: strip.querySelectorAll(".sdvg-shot").length, tau: strip.classList.contains("with-tau") };
  }, SAMPLER);
}
