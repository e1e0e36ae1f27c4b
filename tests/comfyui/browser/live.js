// A live session by the pocket models: begun, steered by typing, by keys and from a second page, loaded anew in the middle, ended; its
// recording in the graph, undone, and finished by the route.
//
//     NODE_PATH=folder/with/playwright-core node live.js OPTIONS        (see page.js)
const { build, main, quiet, reload, run, write } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";
const POCKET = "SDVGPocketModels";
const ROUTER = "SDVGQualityRouter";
// As the pocket models know them.
const WORDS = ["a small red ring rests on grass", "a large blue ball rests on sand", "a small green ring rests on grass"];

main(async (page, options) => {
  await page.evaluate(build, { ...options, script: undefined });
  await page.evaluate(roomForVideo);
  await write(page, SAMPLER, "drafter_context", "own");
  await quiet(page, 500);
  const offered = await offer(page);
  const before = await graph(page);
  const steps = [await stepsOf(page)];
  await page.evaluate(collect, ["titles", ".sdvg-live-start", "title"]);
  await page.evaluate(collect, ["again", ".sdvg-live-act"]);
  await begin(page);
  steps.push(await stepsOf(page));
  const buttons = await page.evaluate(() => [window.collected.titles, window.collected.again]);
  const begun = { ...(await look(page)), steps, buttons, graph: await graph(page), pace: await pace(page), says: (await look(page)).pace };
  await box(page).press("ArrowUp");
  begun.newest = (await look(page)).box;
  await box(page).fill("");
  const typed = await type(page);
  const refused = await refuse(page);
  const held = await hold(page);
  const beside = await steerBeside(page, options);
  const loaded = await loadAnew(page);
  const back = await goBack(page);
  const ended = await end(page);
  const undone = await undo(page);
  const finished = await finish(page);
  const refined = await refine(page);
  const texts = await readBack(page);
  const changed = await changeMeanwhile(page);
  const over = await typePastTheEnd(page);
  return { offered, before, begun, typed, refused, held, beside, loaded, back, ended, undone, finished, refined, texts, changed, over };
});

/** Room for the video: Nodes 2.0 has the node of ComfyUI's that saves it grow, which is a step at the next click. */
function roomForVideo() {
  window.app.graph.nodes.find((node) => node.type === "SaveVideo").setSize([280, 520]);
}

// --- whether it can begin

/** What the button says, as each of the things that a session does not take is asked for and taken back. */
async function offer(page) {
  const seen = { plain: await button(page) };
  for (const [name, type, widget, value, usual] of [
    ["budget", ROUTER, "policy", "budget", "reward"],
    ["directions", SAMPLER, "directions", "..d", ""],
    ["locks", SAMPLER, "kept_blocks", "2:0123456789abcdef", ""],
    ["until", SAMPLER, "until_block", 2, 0],
  ]) {
    await write(page, type, widget, value);
    await quiet(page, 700);
    seen[name] = await button(page);
    await write(page, type, widget, usual);
  }
  for (const input of ["drafter", "positive"]) {
    await page.evaluate(wire, [SAMPLER, input, false]);
    await quiet(page, 700);
    seen[input] = await button(page);
    await page.evaluate(wire, [SAMPLER, input, true]);
  }
  await page.evaluate(wireLive, SAMPLER);
  await quiet(page, 700);
  seen.wired = await button(page);
  await page.evaluate(wireLive, SAMPLER);
  await quiet(page, 700);
  return { ...seen, again: await button(page) };
}

/** Set the input by a node, or take that node away. */
function wireLive(type) {
  const { graph: all, extensionManager } = window.app;
  const known = all.nodes.find((node) => node.type === "PrimitiveBoolean");
  if (known) all.remove(known);
  else {
    const sampler = all.nodes.find((node) => node.type === type);
    const source = window.LiteGraph.createNode("PrimitiveBoolean");
    all.add(source);
    source.connect(0, sampler, sampler.inputs.findIndex(({ name }) => name === "live"));
  }
  const { changeTracker } = extensionManager.workflow.activeWorkflow;
  (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
}

/** How many steps can be undone, with that of all ComfyUI has not noted yet, as it would at the next click. */
function stepsOf(page) {
  return page.evaluate(() => {
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
    return changeTracker.undoQueue.length;
  });
}

/** What is set for sessions on a new page, and what the server calls usual. */
function pace(page) {
  return page.evaluate(async (type) => {
    const { setting } = window.app.extensionManager;
    const told = (await (await fetch(`/object_info/${type}`)).json())[type].input.optional.live[1].sdvg_pace;
    return { set: [setting.get("sdvg.live.ahead"), setting.get("sdvg.live.patience")], usual: [told.ahead[0], told.patience[0]] };
  }, SAMPLER);
}

function button(page) {
  return page.evaluate(() => {
    const start = document.querySelector(".sdvg-live-start");
    return { disabled: start.disabled, name: start.title };
  });
}

/** Take a wire of the sampler away, or put it back. */
function wire([type, input, on]) {
  const { graph: all, extensionManager } = window.app;
  const sampler = all.nodes.find((node) => node.type === type);
  const pocket = all.nodes.find((node) => node.type === "SDVGPocketModels");
  const output = { drafter: "drafter", positive: "conditioning" }[input];
  const slot = sampler.inputs.findIndex(({ name }) => name === input);
  if (on) pocket.connect(pocket.findOutputSlot(output), sampler, slot);
  else sampler.disconnectInput(slot);
  const { changeTracker } = extensionManager.workflow.activeWorkflow;
  (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
}

// --- while it goes on

/** From now on, keep all that an element says, or an attribute of it. */
function collect([name, selector, attribute]) {
  const element = document.querySelector(selector);
  const seen = [];
  new MutationObserver(() => seen.push(attribute ? element.getAttribute(attribute) : element.textContent)).observe(element, {
    attributes: true,
    childList: true,
    subtree: true,
  });
  window.collected = { ...window.collected, [name]: seen };
}

async function begin(page) {
  await page.locator(".sdvg-live-start").click();
  await made(page, 2);
}

/** Until so many blocks are made. */
function made(page, count) {
  return page.waitForFunction((least) => document.querySelectorAll(".living .sdvg-squares .made").length >= least, count);
}

/** Send words three times, and for each how long it takes until the film shows the block that they count from. */
async function type(page) {
  const steps = [];
  for (const words of WORDS) {
    await box(page).fill(words);
    await page.evaluate(watchFilm);
    const answer = page.waitForResponse((one) => one.url().endsWith("/sdvg/steer") && one.request().postDataJSON().act === "prompt");
    await page.keyboard.press("Enter");
    const { block, text } = await (await answer).json();
    const coming = (await look(page)).note;
    await page.waitForFunction((number) => window.shownSince(number) !== undefined, block);
    const ms = await page.evaluate((number) => window.shownSince(number), block);
    steps.push({ words, block, text, ms, coming, box: (await look(page)).box, shown: (await look(page)).note });
  }
  return steps;
}

/** From the next Enter on, note when the film shows a block first. */
function watchFilm() {
  const film = document.querySelector(".sdvg-film");
  const seen = new Map();
  let from;
  document.addEventListener("keydown", () => {
    from = performance.now();
  }, { capture: true, once: true });
  const note = () => {
    const number = Number(film.dataset.shown?.split(":")[0]);
    if (from !== undefined && !seen.has(number)) seen.set(number, performance.now() - from);
  };
  new MutationObserver(note).observe(film, { attributes: true, attributeFilter: ["data-shown"] });
  window.shownSince = (number) => seen.get(number);
}

/** What is no prompt here, by what the page says; nothing of it is sent. */
async function refuse(page) {
  const seen = {};
  const sent = [];
  const hear = (request) => request.url().endsWith("/sdvg/steer") && sent.push(request.postDataJSON().act);
  page.on("request", hear);
  for (const words of ["a ball // red", "a ball /* red", "a \\ ball", "5: a ball", "7 cut: a ball"]) {
    await box(page).fill(words);
    await page.keyboard.press("Enter");
    seen[words] = (await look(page)).refusal;
  }
  page.off("request", hear);
  await box(page).fill("");
  return { seen, sent: sent.filter((act) => act !== "play") };
}

/**
 * Held by its key, while the film plays on from the beginning; a letter in the box is no key; a cut waits. Then it goes on by its button,
 * after which letters come into the box.
 */
async function hold(page) {
  await box(page).press("h");
  const letter = (await look(page)).box;
  await box(page).fill("");
  await page.keyboard.press("Escape");
  const left = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("h");
  await page.waitForFunction(() => document.querySelector(".sdvg-live-pace").textContent.startsWith("held"));
  await page.waitForTimeout(1500); // the block in the making is done
  const { blocks } = await look(page);
  await page.waitForFunction(() => document.querySelector(".sdvg-film").dataset.shown.startsWith("1:"));
  const after = await look(page);
  await page.keyboard.press("c");
  await page.waitForFunction((note) => document.querySelector(".sdvg-live-note").textContent !== note, after.note);
  const { note } = await look(page);
  await page.getByText("Go on", { exact: true }).click();
  await page.keyboard.type("xha");
  const typed = await look(page);
  const on = await ahead(page);
  await box(page).fill("");
  await made(page, blocks + 1);
  return { letter, left, blocks: [blocks, after.blocks], pace: after.pace, note, typed: typed.box, on };
}

/** What is said of how soon words act, and the seconds until the film has shown what is made. */
async function ahead(page) {
  await page.waitForFunction(() => document.querySelector(".sdvg-live-pace").textContent.startsWith("acts in"));
  return page.evaluate(() => {
    const says = document.querySelector(".sdvg-live-pace").textContent;
    const [at, all] = document.querySelector(".sdvg-time").textContent.match(/[\d.]+/g).map(Number);
    return { says, left: all - at };
  });
}

/** A second page with the same workflow shows the session and steers it. */
async function steerBeside(page, { url }) {
  const workflow = await page.evaluate(() => window.app.graph.serialize());
  const other = await page.context().newPage();
  await other.goto(url, { waitUntil: "domcontentloaded" });
  await other.waitForFunction((known) => window.LiteGraph?.registered_node_types[known] && window.app?.graph?.nodes.length, SAMPLER);
  await other.waitForTimeout(1000);
  // It opens what was open last, if it finds it; two tabs of it would be another's.
  await other.evaluate((data) => window.app.graph.id === data.id || window.app.loadGraphData(data), JSON.parse(JSON.stringify(workflow)));
  await made(other, 1);
  const { blocks } = await look(other);
  await made(other, blocks + 2);
  await box(other).fill(WORDS[1]);
  await box(other).press("Shift+Enter");
  await other.waitForFunction((words) => document.querySelector(".sdvg-live-note").textContent.includes(words), WORDS[1].split(" ")[2]);
  const seen = await look(other);
  await other.close();
  await page.bringToFront();
  await page.waitForFunction((words) => document.querySelector(".sdvg-live-note").textContent.startsWith("now:") && document.querySelector(".sdvg-live-note").textContent.includes(words), WORDS[1].split(" ")[2]);
  const joins = await events(page);
  return { note: seen.note, refusal: seen.refusal, joins: joins.map(({ join }) => join).filter(Boolean) };
}

async function loadAnew(page) {
  const { blocks } = await look(page);
  await reload(page, { running: true });
  await made(page, blocks);
  await page.waitForFunction(() => document.querySelector(".sdvg-film").dataset.shown);
  const first = await page.evaluate(() => document.querySelector(".sdvg-film").dataset.shown);
  await made(page, blocks + 2);
  return { blocks, first: Number(first.split(":")[0]), after: await look(page) };
}

/** Again from block 3, by its key; its picture is another one then. */
async function goBack(page) {
  const painted = () => page.evaluate(() => document.querySelector('.sdvg-squares [data-number="3"] canvas').dataset.painted);
  const first = await painted();
  await page.evaluate(collect, ["notes", ".sdvg-live-note"]);
  const prompts = (await events(page)).map(({ words }) => words);
  await page.locator('.sdvg-squares [data-number="3"]').focus();
  await page.keyboard.press("Enter");
  const items = await page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
  const told = [];
  const hear = (request) => request.url().endsWith("/sdvg/steer") && told.push(request.postDataJSON());
  page.on("request", hear);
  await page.keyboard.press("a");
  await page.waitForFunction((known) => ![known, undefined].includes(document.querySelector('.sdvg-squares [data-number="3"] canvas')?.dataset.painted), first);
  const second = await painted();
  page.off("request", hear);
  const all = await events(page);
  const after = told.slice(told.findIndex(({ act }) => act === "again") + 1);
  await made(page, 5);
  const notes = await page.evaluate(() => window.collected.notes);
  return { notes, items, pictures: [first, second], prompts, blocks: all.length, takes: all.map(({ take }) => take), told: after.map(({ at }) => at) };
}

// --- its recording

async function end(page) {
  await box(page).fill(WORDS[0]);
  await box(page).press("Enter");
  const { block } = await page.evaluate(() => ({ block: document.querySelectorAll(".sdvg-squares .made").length + 2 }));
  await made(page, block);
  await page.evaluate(collect, ["next", ".sdvg-next"]);
  const steps = [await stepsOf(page)];
  const ending = await page.evaluate(() => {
    const button = document.querySelector(".sdvg-live-end");
    button.click();
    return [button.textContent, button.disabled];
  });
  await page.waitForFunction(() => !document.querySelector(".living"));
  const done = (await runs(page)).findLast((one) => one.live).done;
  await page.waitForFunction((type) => Boolean(window.app.nodeOutputs[window.app.graph.nodes.find((node) => node.type === type).id]), "SDVGRouteReport");
  await quiet(page, 500);
  steps.push(await stepsOf(page));
  const said = await page.evaluate(() => [document.querySelector(".sdvg-legend").innerText, window.collected.next]);
  const badge = await page.evaluate(badgeOfMany);
  const line = await page.evaluate((type) => {
    const { widgets } = window.app.graph.nodes.find((node) => node.type === type);
    return widgets.find(({ name }) => name.includes("text-preview"))?.value;
  }, SAMPLER);
  return { ending, steps, said, badge, line, seconds: done.seconds, recording: done.recording, dropped: done.dropped, graph: await graph(page), squares: (await look(page)).squares, cards: await cards(page) };
}

/** How wide a square is, and the number of its take on it, where there are many squares. */
function badgeOfMany() {
  const squares = document.querySelector(".sdvg-squares");
  squares.classList.add("many");
  const square = squares.querySelector("[data-take]");
  const widths = [square.clientWidth, Number.parseFloat(getComputedStyle(square, "::after").width)];
  squares.classList.remove("many");
  return widths;
}

async function undo(page) {
  const steps = [];
  for (const key of ["Control+z", "Control+y"]) {
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press(key);
    await quiet(page, 700);
    steps.push(await graph(page));
  }
  return steps;
}

/** The menu after it, and the recording finished by the route. */
async function finish(page) {
  await openMenu(page);
  await page.getByRole("menuitem", { name: /^before Again no. 1/ }).click();
  await page.waitForSelector("dialog.sdvg-text");
  const dropped = await readDialog(page);
  const items = await openMenu(page);
  await run(page, async () => page.getByRole("menuitem", { name: /^finish the live recording/ }).click());
  const { totals, blocks } = await report(page);
  await quiet(page, 500);
  return { items, dropped, passes: totals.passes, scored: totals.scored, drafted: blocks.length, graph: await graph(page) };
}

/** The other way to finish it, from its menu, which changes the route; then that is undone. */
async function refine(page) {
  const items = await openMenu(page);
  const steps = [await stepsOf(page)];
  await run(page, async () => page.getByRole("menuitem", { name: /^refine the live recording/ }).click());
  const { totals, blocks } = await report(page);
  await quiet(page, 1000);
  steps.push(await stepsOf(page));
  const route = await page.evaluate(routeOf, ROUTER);
  const again = await openMenu(page);
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Control+z");
  await quiet(page, 1000);
  steps.push(await stepsOf(page));
  const undone = await page.evaluate(routeOf, ROUTER);
  return { items, steps, passes: totals.passes, blocks: blocks.length, route, again, undone, graph: await graph(page) };
}

function routeOf(type) {
  const { widgets } = window.app.graph.nodes.find((node) => node.type === type);
  return Object.fromEntries(widgets.filter(({ name }) => /^policy/.test(name)).map(({ name, value }) => [name, value]));
}

/** Open the menu of block 2, and return its items. */
async function openMenu(page) {
  await page.locator('.sdvg-squares [data-number="2"]').focus();
  await page.keyboard.press("Enter");
  return page.evaluate(() => [...document.querySelectorAll(".sdvg-menu [role^=menuitem]")].map((item) => item.firstChild.textContent));
}

/** What the report's node has of the newest run. */
function report(page) {
  return page.evaluate(() => {
    const { id } = window.app.graph.nodes.find((node) => node.type === "SDVGRouteReport");
    return JSON.parse(window.app.nodeOutputs[id].sdvg_report[0]);
  });
}

/** Words as they are written into the graph, as ComfyUI's page sends them and as ours reads them. */
async function readBack(page) {
  return page.evaluate(async ([type, texts]) => {
    const { escapeChoices } = await import("/extensions/sdvg/live_text.js");
    const { parts } = await import("/extensions/sdvg/prompt_lines.js");
    const { app } = window;
    const node = app.graph.nodes.find((one) => one.type === type);
    const widget = node.widgets.find(({ name }) => name === "prompt");
    const before = widget.value;
    const seen = [];
    for (const text of texts) {
      widget.value = escapeChoices(text);
      const sent = (await app.graphToPrompt()).output[node.id].inputs.prompt;
      seen.push([text, sent, parts(sent).map(({ from, lines }) => [from, lines.join("\n")])]);
    }
    widget.value = before;
    return seen;
  }, [POCKET, ["a {small|large} ball", "a ball | a ring }{", "a ball\n3: a {ring}\n5 fresh #k3f: a | b"]]);
}

/** A session whose graph is changed meanwhile: nothing is written, and the recording is offered as text. */
async function changeMeanwhile(page) {
  await begin(page);
  await write(page, SAMPLER, "blocks", 33);
  await box(page).focus();
  await page.keyboard.press("Escape");
  await page.keyboard.press("x");
  await page.waitForSelector("dialog.sdvg-text");
  const dialog = await readDialog(page);
  const { recording } = (await runs(page)).findLast((one) => one.live).done;
  return { ...dialog, recording, graph: await graph(page) };
}

/** A session that comes to its end by itself, while somebody types. */
async function typePastTheEnd(page) {
  const sessions = async () => (await runs(page)).filter(({ live }) => live).length;
  await write(page, SAMPLER, "takes", "");
  await write(page, SAMPLER, "live_blocks", 6);
  await page.locator(".sdvg-live-start").click();
  await page.waitForSelector(".living");
  const before = await sessions();
  await page.waitForFunction(() => !document.querySelector(".living"));
  await page.keyboard.type("a r x");
  const { box: words, focus } = await look(page);
  await page.keyboard.press("Enter");
  const says = await page.evaluate(() => document.querySelector(".sdvg-error").textContent);
  await page.evaluate(() => document.activeElement.blur());
  const isSeen = (await look(page)).seen[0];
  return { sessions: [before, await sessions()], words, focus, says, isSeen };
}

/** Read the window with a recording, and close it. */
async function readDialog(page) {
  const seen = await page.evaluate(() => {
    const shown = document.querySelector("dialog.sdvg-text");
    return { sentences: [...shown.querySelectorAll("p")].map((one) => one.textContent), text: shown.querySelector("textarea").value, focus: document.activeElement.textContent };
  });
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog.sdvg-text"));
  return seen;
}

// --- what is there

function box(page) {
  return page.locator(".sdvg-live-row input");
}

function look(page) {
  return page.evaluate(() => ({
    pace: document.querySelector(".sdvg-live-pace").textContent,
    note: document.querySelector(".sdvg-live-note").textContent,
    refusal: document.querySelector(".sdvg-refusal").textContent,
    box: document.querySelector(".sdvg-live-row input").value,
    blocks: document.querySelectorAll(".sdvg-squares .made").length,
    squares: document.querySelectorAll(".sdvg-squares button").length,
    focus: document.activeElement.tagName,
    seen: [".sdvg-live-row", ".sdvg-live-end", ".sdvg-film", ".sdvg-stop", ".sdvg-live-start"].map((part) => document.querySelector(part).checkVisibility()),
    named: [...document.querySelectorAll(".sdvg-live-row :is(input, button), .sdvg-live-act")].every((one) => one.title),
  }));
}

function cards(page) {
  return page.evaluate(() => [...document.querySelectorAll(".sdvg-shot textarea")].map(({ value }) => value));
}

function graph(page) {
  return page.evaluate(([sampler, pocket]) => {
    const value = (type, name) => window.app.graph.nodes.find((node) => node.type === type).widgets.find((widget) => widget.name === name).value;
    const of = ["seed", "takes", "blocks", "live", "live_blocks"].map((name) => [name, value(sampler, name)]);
    return { ...Object.fromEntries(of), prompt: value(pocket, "prompt") };
  }, [SAMPLER, POCKET]);
}

async function runs(page) {
  return page.evaluate(async () => (await (await fetch("/sdvg/runs")).json()).runs);
}

/** Of the session, as the server knows them. */
async function events(page) {
  return (await runs(page)).findLast((one) => one.live).events;
}
