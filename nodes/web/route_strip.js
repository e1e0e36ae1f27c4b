// A strip on the sampler: one square per block, coloured once its fate is known. The server sends the same as a line of
// text, which shows if this file is missing. One element serves both renderers, and none of it is saved.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { locale, make, nodeOf, onOutput, rootGraph, workflowIdOf } from "./common.js";

export const SAMPLER = "SDVGSpeculativeSampler";
export const EVENT = "sdvg.block";

// Names, letters and colours are those of sdvg_core/report/fates.py; ink is the text colour that reads best on each.
export const FATES = {
  forced: { letter: "F", colour: "#0072B2", ink: "#fff", en: "forced", zh: "强制" },
  kept: { letter: "a", colour: "#009E73", ink: "#000", en: "accepted", zh: "保留" },
  remade: { letter: "r", colour: "#D55E00", ink: "#000", en: "regenerated", zh: "重做" },
  drafted_unseen: { letter: "d", colour: "#93D6C1", ink: "#000", en: "accepted, not scored", zh: "保留（未评分）" },
  target_unseen: { letter: "t", colour: "#F3BC90", ink: "#000", en: "target's, no draft", zh: "目标模型（无草稿）" },
  bailed_out: { letter: "B", colour: "#CC79A7", ink: "#000", en: "bailed out", zh: "停止起草" },
};
// For a fate from a newer server that this file, still in the browser's cache, does not know.
const UNKNOWN = { letter: "?", colour: "#888888", ink: "#000", en: "other", zh: "其他" };

const WORDS = {
  en: {
    route: "Who made each block",
    empty: "One square per block appears here during a run.",
    block: (number, of) => `Block ${number} of ${of}`,
    score: "score",
    seconds: (s) => `${s} s`,
  },
  zh: {
    route: "每个块由谁生成",
    empty: "运行时，这里每块显示一个方格。",
    block: (number, of) => `第 ${number} 块，共 ${of} 块`,
    score: "得分",
    seconds: (s) => `${s} 秒`,
  },
};

const HEIGHT = 74; // of the widget; ComfyUI's canvas leaves 10 pixels free on each side
const MANY = 16; // more squares than this are drawn small, without letters, in three rows
const STYLE = `
.sdvg-route { box-sizing: border-box; display: flex; flex-direction: column; gap: 5px; height: ${HEIGHT - 20}px;
  padding: 0 5px; overflow: hidden; font: 12px/16px Inter, Arial, sans-serif; color: var(--input-text, #ddd); }
.sdvg-squares { --side: 22px; display: flex; flex: none; flex-wrap: wrap; gap: 2px; max-height: 31px; margin: 0;
  padding: 0; overflow: hidden auto; list-style: none; scrollbar-width: thin; }
.sdvg-squares.many { --side: 9px; }
.sdvg-squares li { box-sizing: border-box; flex: none; width: var(--side); height: var(--side); border-radius: 4px;
  border: 1px solid color-mix(in srgb, currentColor 35%, transparent); font-weight: 600; line-height: 20px;
  text-align: center; cursor: default; }
.sdvg-squares.many li { border-radius: 2px; font-size: 0; }
.sdvg-legend { display: flex; flex: none; gap: 12px; overflow: hidden; white-space: nowrap; }
.sdvg-legend i { display: inline-block; width: 9px; height: 9px; margin-right: 5px; border-radius: 2px; }
`;

/** The squares and the legend of one node. */
class RouteStrip {
  constructor() {
    this.element = make("div", "sdvg-route");
    this.squares = this.element.appendChild(make("ol", "sdvg-squares"));
    this.legend = this.element.appendChild(make("div", "sdvg-legend"));
    this.legend.setAttribute("role", "status");
    this.clear(0);
  }

  /** Show `of` empty squares; if there are none, say what will appear here. */
  clear(of) {
    const words = WORDS[locale()];
    this.events = [];
    this.squares.setAttribute("aria-label", words.route);
    this.squares.classList.toggle("many", of > MANY);
    this.squares.replaceChildren(...Array.from({ length: of }, (_, i) => describe(make("li", ""), words.block(i + 1, of))));
    this.legend.replaceChildren(make("span", "", of ? "" : words.empty));
  }

  /** Fill in the squares of finished blocks, in the order they arrived. */
  add(events) {
    for (const event of events) {
      if (event.number === 1 || event.of !== this.squares.children.length) this.clear(event.of);
      this.events.push(event);
      this.fill(this.squares.children[event.number - 1], event);
    }
    this.legend.replaceChildren(...this.tally());
    // Not scrollIntoView, which would also scroll everything around the strip.
    this.squares.scrollTop = this.squares.children[this.events.at(-1).number - 1].offsetTop - this.squares.offsetTop;
  }

  fill(square, event) {
    const fate = FATES[event.fate] ?? UNKNOWN;
    Object.assign(square.style, { background: fate.colour, color: fate.ink, borderColor: "transparent" });
    square.dataset.fate = event.fate;
    square.textContent = fate.letter;
    describe(square, sentence(event, fate));
  }

  /** How many blocks had each fate, and their total seconds. */
  tally() {
    const counts = new Map(Object.values(FATES).map((fate) => [fate, 0]));
    let seconds = 0;
    for (const event of this.events) {
      const fate = FATES[event.fate] ?? UNKNOWN;
      counts.set(fate, (counts.get(fate) ?? 0) + 1);
      seconds += event.seconds;
    }
    const entries = [...counts].filter(([, count]) => count).map(([fate, count]) => {
      const entry = make("span", "");
      entry.append(make("i", ""), `${count} ${fate[locale()]}`);
      entry.firstChild.style.background = fate.colour;
      return entry;
    });
    return [...entries, make("span", "", WORDS[locale()].seconds(seconds.toFixed(1)))];
  }
}

function describe(element, text) {
  element.title = text;
  element.setAttribute("aria-label", text);
  return element;
}

function sentence(event, fate) {
  const [language, words] = [locale(), WORDS[locale()]];
  const parts = [words.block(event.number, event.of), fate[language]];
  if (Number.isFinite(event.score)) parts.push(`${words.score} ${event.score.toFixed(2)}`);
  return [...parts, words.seconds(event.seconds.toFixed(1))].join(" · ");
}

const strips = new WeakMap(); // node -> its strip
const runs = new Map(); // workflow and node -> the events of its newest run that this page saw

/** The strip of a node by its id in a run; undefined if it is not in the open workflow. */
function stripOf(id) {
  const node = nodeOf(id);
  return node && strips.get(node);
}

function workflowId() {
  return rootGraph()?.id;
}

/** Keep the event for when its workflow is opened again, and show it if the workflow is open now. */
function onBlock({ detail }) {
  const workflow = detail.workflow ?? workflowId();
  const key = `${workflow} ${detail.node}`;
  if (detail.number === 1 || !runs.has(key)) runs.set(key, []);
  runs.get(key).push(detail);
  if (workflow === workflowId()) stripOf(detail.node)?.add([detail]);
}

function onExecuting({ detail: id }) {
  const strip = id === null ? undefined : stripOf(id);
  strip?.clear(strip.expected());
}

/** Show the strips again after another tab was opened or a step undone: both create all nodes again. */
function restore() {
  for (const [key, events] of runs) {
    const [workflow, id] = key.split(" ");
    if (workflow === workflowId()) stripOf(id)?.add(events);
  }
}

/** Keep a whole run for when its workflow is opened again, and show it if the workflow is open now. */
function keep(workflow, id, events) {
  runs.set(`${workflow} ${id}`, events);
  if (workflow === workflowId()) stripOf(id)?.add(events);
}

/** Show a whole run. If the event has another workflow's id, ask the server which workflow the run was queued from. */
onOutput(SAMPLER, (node, { sdvg_route: events }, run) => {
  if (!events?.length) return;
  if (!run) {
    strips.get(node)?.add(events);
    return;
  }
  // Events from the cache have the id of the workflow that made them, which may since have been saved under another.
  const made = events[0].workflow ?? workflowId();
  keep(made, run.id, events);
  if (made === workflowId()) return;
  workflowIdOf(run.prompt).then(
    (queued) => queued && keep(queued, run.id, events),
    (error) => console.warn("SDVG: the server's queue cannot be read", error),
  );
});

function addStrip(node) {
  if (node.comfyClass !== SAMPLER) return;
  const strip = new RouteStrip();
  strip.expected = () => Number(node.widgets.find((widget) => widget.name === "blocks")?.value) || 0;
  const fixed = { getMinHeight: () => HEIGHT, getMaxHeight: () => HEIGHT };
  // `options.serialize` keeps the widget out of the prompt, `serialize` out of the saved workflow.
  const widget = node.addDOMWidget("route", "sdvg_route", strip.element, { serialize: false, hideOnZoom: false, ...fixed });
  widget.serialize = false;
  strips.set(node, strip);
}

app.registerExtension({
  name: "sdvg.route_strip",
  setup() {
    document.head.append(make("style", "", STYLE));
    api.addEventListener(EVENT, onBlock);
    api.addEventListener("executing", onExecuting);
  },
  nodeCreated: addStrip,
  afterConfigureGraph: restore,
});
