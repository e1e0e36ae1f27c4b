// A headless Chromium with ComfyUI open in it, and the workflow that is run there.
//
// Options, as JSON on the command line: `url`, `chromium` (its program), `profile` (a new folder); `vue`: the Nodes 2.0
// renderer; `script`: the plan of a router beside ours (running_server.py), which else goes by tau; `seed`; `locale`; `withoutOurs`: keep our JavaScript away.
const { chromium } = require("playwright-core");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]; // nobody else is asked
const SAMPLER = "SDVGSpeculativeSampler";
const DRAFT = 1000; // ms, after which ComfyUI has kept a draft of what changed, or opened it again
const LIMIT = 180000; // ms for anything that is waited for: a busy machine is slow, and only a broken page needs them all

/** Open ComfyUI, call `use(page, options)`, and return what it returned with what went wrong meanwhile. */
async function inPage(options, use) {
  const context = await chromium.launchPersistentContext(options.profile, {
    executablePath: options.chromium, headless: true, args: FLAGS, viewport: { width: 1400, height: 970 },
  });
  const seen = { errors: [], hosts: [], deprecated: [] };
  try {
    context.setDefaultTimeout(LIMIT);
    const page = context.pages()[0] ?? (await context.newPage());
    await watch(context, page, seen, options);
    const evaluate = page.evaluate.bind(page);
    page.evaluate = async (...given) => { // what a key or a click set going is over before anybody looks
      await evaluate(turns);
      return evaluate(...given);
    };
    await open(page, options);
    return { ...(await use(page, options)), ...seen };
  } finally {
    await context.close();
  }
}

async function watch(context, page, seen, options) {
  if (options.withoutOurs) await context.route("**/extensions/sdvg/**", (route) => route.abort());
  page.asked = new Set(); // of the server, and not answered yet; a film is never read to its end
  page.on("request", (request) => {
    if (request.resourceType() !== "media") page.asked.add(request);
    const { hostname } = new URL(request.url());
    if (!["127.0.0.1", ""].includes(hostname)) seen.hosts.push(hostname);
  });
  for (const over of ["requestfinished", "requestfailed"]) page.on(over, (request) => page.asked.delete(request));
  page.on("pageerror", (error) => seen.errors.push(error.message));
  // ComfyUI catches what an extension throws, and only writes it down.
  page.on("console", (message) => {
    if (message.type() === "error" && message.text().includes("extension 'sdvg")) seen.errors.push(message.text());
  });
  await listen(await context.newCDPSession(page), seen);
  await page.addInitScript(repeat);
  await page.addInitScript(countOurs);
  await page.addInitScript(stand);
}

/** Count how often our own scripts ask for a drawn frame or set a timer, and each turn of an interval that they set once. */
function countOurs() {
  window.turnsOfOurs = 0;
  const isOurs = () => /extensions\/sdvg\//.test(new Error().stack);
  for (const name of ["requestAnimationFrame", "setTimeout", "setInterval"]) {
    const known = window[name];
    window[name] = function (act, ...given) {
      const ours = isOurs();
      window.turnsOfOurs += ours;
      const turn = (...news) => {
        window.turnsOfOurs += 1;
        return act(...news);
      };
      return known.call(window, ours && name === "setInterval" ? turn : act, ...given);
    };
  }
}

/** What our scripts ask for in some idle milliseconds, by that count. */
async function turnsWhile(page, ms) {
  const before = await page.evaluate(() => window.turnsOfOurs);
  await page.waitForTimeout(ms);
  return (await page.evaluate(() => window.turnsOfOurs)) - before;
}

/** Have what ComfyUI animates and lets fade be there at once: without a GPU each drawn frame costs the processor. */
function stand() {
  const style = new CSSStyleSheet();
  style.replaceSync("*, ::before, ::after { animation: none !important; transition: none !important; }");
  document.adoptedStyleSheets = [style];
}

/** Keep every notice of deprecation, once, with the scripts that were running: first the one that wrote it. */
async function listen(client, seen) {
  const known = new Set();
  client.on("Runtime.consoleAPICalled", ({ args, stackTrace }) => {
    const text = args.map((one) => one.value ?? one.description ?? "").join(" ");
    const scripts = [...new Set((stackTrace?.callFrames ?? []).map((frame) => frame.url))];
    const notice = JSON.stringify({ text, scripts });
    if (!/deprecat/i.test(text) || known.has(notice)) return;
    known.add(notice);
    seen.deprecated.push({ text, scripts });
  });
  await client.send("Runtime.enable");
}

/** Have LiteGraph write such a notice each time: it is silent once anybody did the same before us. */
function repeat() {
  let graph;
  Object.defineProperty(window, "LiteGraph", {
    configurable: true,
    get: () => graph,
    set(made) {
      graph = made;
      graph.alwaysRepeatWarnings = true;
    },
  });
}

async function open(page, options) {
  const settings = { "TutorialCompleted": true, "VueNodes.Enabled": Boolean(options.vue), "Locale": options.locale ?? "en",
    "Minimap.Visible": false, "RightSidePanel.IsOpen": false };
  // The server keeps what the page before set.
  const ours = { "sdvg.strip.play": true };
  const theirs = Object.fromEntries(Object.entries(settings).map(([name, value]) => [`Comfy.${name}`, value]));
  await page.request.post(`${options.url}/settings`, { data: { ...ours, ...theirs } });
  await page.goto(options.url, { waitUntil: "domcontentloaded" });
  await ready(page);
  for (let i = 0; i < 2; i += 1) { // the dialogues of a first visit
    await quiet(page);
    await page.keyboard.press("Escape");
  }
}

/**
 * Wait some milliseconds, and then on until the page asks nothing of the server and looks the same in three looks,
 * each two drawn frames after the last: on a busy machine the same as on an idle one.
 */
async function quiet(page, least = 150) {
  await page.waitForTimeout(least);
  const until = Date.now() + LIMIT / 2;
  for (let same = 0, last; same < 3 && Date.now() < until; ) {
    const now = await page.evaluate(drawn);
    same = now === last && !page.asked.size ? same + 1 : 0;
    last = now;
  }
}

/** Two drawn frames, and what was queued until then. */
async function turns() {
  for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);
  await new Promise((resolve) => setTimeout(resolve));
}

async function drawn() {
  await new Promise((resolve) => setTimeout(resolve, 80));
  return [...document.querySelectorAll("[data-node-id] *, .sdvg-strip *, .dom-widget *")].map((one) => one.childElementCount || one.matches(".sdvg-time") ? "" : one.textContent).join("|");
}

async function ready(page) {
  const known = (type) => window.app?.extensionManager && window.LiteGraph?.registered_node_types[type];
  await page.waitForFunction(known, SAMPLER);
}

/** Load the page anew; ComfyUI opens the workflow again that was open. `running`: a run goes on, so it never is quiet. */
async function reload(page, { running = false } = {}) {
  await page.reload({ waitUntil: "domcontentloaded" });
  await ready(page);
  if (!running) await quiet(page, DRAFT);
}

/** Make the workflow with the page's own means, and open it as a file would be opened. */
async function build({ script, seed }) {
  const { app, LiteGraph } = window;
  app.graph.clear();
  const place = (type, x, y, widgets = {}, size = undefined) => {
    const node = LiteGraph.createNode(type);
    app.graph.add(node);
    node.pos = [x, y];
    for (const [name, value] of Object.entries(widgets)) node.widgets.find((w) => w.name === name).value = value;
    if (size) node.setSize(size);
    return node;
  };
  const wire = (from, output, to, input) =>
    from.connect(from.findOutputSlot(output), to, to.inputs.findIndex((i) => i.name === input));
  const pocket = place("SDVGPocketModels", 20, 60, {}, [320, 280]);
  const gate = place("SDVGQualityRouter", 20, 480, { policy: "reward", "policy.tau": -0.7 }, [340, 300]);
  const router = script ? place("PlannedRouter", 20, 860, { plan: script }) : gate;
  const settings = { width: 64, height: 64, seed };
  const sampler = place("SDVGSpeculativeSampler", 380, 60, settings, [400, 800]);
  const video = place("CreateVideo", 820, 170, { fps: 16 }, [280, 100]);
  const save = place("SaveVideo", 820, 370, { filename_prefix: "sdvg/pocket" }, [280, 400]);
  const report = place("SDVGRouteReport", 1140, 60, {}, [440, 520]);
  for (const [output, node, input] of [
    ["drafter", sampler, "drafter"], ["target", sampler, "target"], ["conditioning", sampler, "positive"],
    ["fast_vae", sampler, "vae"], ["scorer", gate, "scorer"], ...(script ? [["scorer", router, "scorer"]] : []),
  ]) wire(pocket, output, node, input);
  wire(router, "router", sampler, "router");
  wire(sampler, "frames", video, "images");
  wire(video, "VIDEO", save, "video");
  wire(sampler, "report", report, "report");
  await app.loadGraphData({ ...JSON.parse(JSON.stringify(app.graph.serialize())), id: crypto.randomUUID() });
}

async function run(page, ask = queue) {
  await page.evaluate(() => {
    window.app.nodeOutputs = {};
  });
  await ask(page);
  const finished = () => {
    const report = window.app.graph.nodes.find((node) => node.type === "SDVGRouteReport");
    return Boolean(window.app.nodeOutputs[report.id]);
  };
  await page.waitForFunction(finished);
}

function queue(page) {
  return page.evaluate(() => window.app.queuePrompt(0, 1));
}

/** Press the page's button. */
function press(page) {
  return page.click("[data-testid=queue-button]");
}

/** Run `use` with the options of the command line, and print what it returns. */
function main(use) {
  inPage(JSON.parse(process.argv[2]), use).then(
    (result) => console.log(JSON.stringify(result)),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

/** Let a file fall onto the middle of the canvas. */
function drop({ name, text }) {
  const canvas = document.querySelector("#graph-canvas");
  const { x, y, width, height } = canvas.getBoundingClientRect();
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name, { type: "application/json" }));
  const where = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true, cancelable: true };
  for (const type of ["dragenter", "dragover", "drop"]) canvas.dispatchEvent(new DragEvent(type, { ...where, dataTransfer }));
}

/** Change a widget as a hand would, and let ComfyUI notice. */
function write(page, type, name, value) {
  return page.evaluate(([of, of_widget, news]) => {
    const widget = window.app.graph.nodes.find((node) => node.type === of).widgets.find((one) => one.name === of_widget);
    widget.value = news;
    widget.callback?.(news);
    const { changeTracker } = window.app.extensionManager.workflow.activeWorkflow;
    (changeTracker.captureCanvasState ?? changeTracker.captureState ?? changeTracker.checkState).call(changeTracker);
  }, [type, name, value]);
}

module.exports = { drop, DRAFT, build, main, press, quiet, reload, run, turnsWhile, write };
