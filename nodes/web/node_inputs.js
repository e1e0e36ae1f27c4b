// What the nodes ask of the next run: reads and writes the widgets of a sampler and of what is upstream of it.
import { BLOCK_LENGTH, RATE, fitDirections, fitTakes } from "./blocks.js";
import { after } from "./dom.js";
import {
  isDrawn,
  isLinked,
  isWired,
  promptNode,
  samplersOf,
  seedMoves,
  setWidgets,
  sourceOf,
  toast,
  widgetOf,
} from "./frontend.js";
import { blocksAfresh } from "./prompt_lines.js";
import { FIRST_KEY, placesIn, placesOfRun } from "./shots.js";
import { clipBlocks } from "./strip_model.js";
import { text } from "./words.js";

/** @type {Record<string, string>} */
export const TEXT_OF = { SDVGPrompt: "text", SDVGPocketModels: "prompt" }; // type of node -> its widget with the prompt
const SHOWN = ["blocks", "directions", "takes", "kept_blocks", "until_block"]; // the widgets that the strip shows
const MOST_BLOCKS = 4096; // that the sampler takes, unless its widget says otherwise
const LIFE = 6000; // ms of a message

export class NodeInputs {
  /**
   * `run()`: the run that is shown, whose values count where another node gives them; `changed`: when a widget of the sampler changes.
   * @param {GraphNode} node
   * @param {() => Run | null} run
   * @param {() => void} changed
   */
  constructor(node, run, changed) {
    this.node = node;
    this.run = run;
    for (const name of SHOWN) {
      const widget = widgetOf(node, name);
      if (widget) after(widget, "callback", changed);
    }
    this.lengthName = widgetOf(node, "blocks")?.label;
    this.isBeginning = false; // a live session
    this.sendLive();
    this.sendFitted("directions", fitDirections);
    this.sendFitted("takes", fitTakes);
  }

  /**
   * What a widget says; if another node gives the input, what it gave the run that is shown.
   * @param {string} name
   */
  read(name) {
    if (!isWired(this.node, name)) return String(widgetOf(this.node, name)?.value ?? "");
    const run = this.run();
    /** @type {Record<string, unknown>} */
    const given = {
      blocks: run?.of,
      directions: run?.directions,
      takes: run?.takes,
      kept_blocks: run?.info.kept,
      until_block: run?.info.until,
    };
    return String(given[name] ?? "");
  }

  /** @returns {Inputs} */
  now() {
    return {
      blocks: Number(this.read("blocks")),
      directions: this.read("directions"),
      takes: this.read("takes"),
      lock: this.read("kept_blocks"),
      until: Number(this.read("until_block")),
      aspect: Number(this.read("width")) / Number(this.read("height")) || 1,
      start: this.start(),
      shots: this.shots(),
    };
  }

  /**
   * The shots that begin afresh, by the prompt; where its text is not at hand, those of the run that is shown.
   * @returns {RunPlace[]}
   */
  shots() {
    const blocks = Number(this.read("blocks"));
    const source = this.promptSource();
    const run = this.run();
    const before = clipBlocks(this.start(), run) ?? 0;
    if (source) return placesIn(String(source.widget.value), blocks, before);
    return run ? placesOfRun(run) : [[FIRST_KEY, 1, blocks]];
  }

  /** All that the strip shows of it, as one text. */
  get key() {
    const sources = [this.promptSource(), this.tauSource()];
    const values = sources.map((source) => source?.widget.value);
    return JSON.stringify([...SHOWN.map((name) => this.read(name)), this.start(), ...values]);
  }

  /** What the video starts from; `unknown`: a node that is not ours says so. */
  start() {
    /** @param {string} name */
    const linked = (name) => isLinked(this.node, (input) => input.name === name);
    const use = this.startUse();
    const clip = linked("continue_from") || use === "extend";
    const run = this.run();
    const frames = run?.done?.clip_frames;
    const source = this.promptSource();
    const before = clip ? (run?.info.before ?? 0) : 0;
    return {
      clip,
      clipSeconds: clip && frames ? frames / RATE : null,
      image: linked("start_image") || use === "first frame",
      restyle: use === "restyle",
      unknown: linked("start") && !use,
      afresh: source ? blocksAfresh(String(source.widget.value), before) : [],
      blockLength: run?.info.block_length ?? BLOCK_LENGTH,
    };
  }

  /** What SDVG Start does with its picture or clip; empty if that node is not there, or if another node says so. */
  startUse() {
    const node = sourceOf(this.node, "start");
    const isOurs = node?.comfyClass === "SDVGStart" && !isWired(node, "use_as");
    return isOurs ? String(widgetOf(node, "use_as")?.value ?? "") : "";
  }

  /** Whether nobody knows yet how long the video will be. */
  get isLengthOpen() {
    return isWired(this.node, "blocks") || this.start().unknown;
  }

  /**
   * Say how long the video will be, where its length is set. A name that the user gave stays.
   * @param {string} name
   */
  nameLength(name) {
    const widget = widgetOf(this.node, "blocks");
    const isNamed = this.node.inputs?.some((slot) => slot.widget?.name === "blocks" && slot.label);
    if (widget && !isNamed) widget.label = this.isLengthOpen ? this.lengthName : name;
  }

  get mostBlocks() {
    return widgetOf(this.node, "blocks")?.options.max ?? MOST_BLOCKS;
  }

  /** Whether something is drawn as the run is queued: a seed, or one of several words. */
  get isDrawn() {
    return seedMoves(this.node) || isDrawn(this.promptSource()?.widget);
  }

  /**
   * The node and the widget with the text of the prompt; undefined if the text comes from elsewhere.
   * @returns {WidgetSource | undefined}
   */
  promptSource() {
    const node = promptNode(this.node);
    const name = TEXT_OF[node?.comfyClass ?? ""];
    const widget = node && widgetOf(node, name);
    return widget && !isWired(node, name) ? { node, widget } : undefined;
  }

  /**
   * The router's node and its widget with the route; undefined if it is none of ours, or if the route comes from elsewhere.
   * @returns {WidgetSource | undefined}
   */
  routeSource() {
    const node = sourceOf(this.node, "router");
    if (node?.comfyClass !== "SDVGQualityRouter") return undefined;
    const widget = widgetOf(node, "policy");
    return widget && !isWired(node, widget.name) ? { node, widget } : undefined;
  }

  /**
   * The router's node and its widget with tau; undefined if it compares no scores, or if tau comes from elsewhere.
   * @returns {WidgetSource | undefined}
   */
  tauSource() {
    const node = sourceOf(this.node, "router");
    if (node?.comfyClass !== "SDVGQualityRouter") return undefined;
    const widget = widgetOf(node, "policy.tau");
    const isGate = ["reward", "hybrid"].includes(String(widgetOf(node, "policy")?.value));
    return widget && isGate && !isWired(node, widget.name) ? { node, widget } : undefined;
  }

  /**
   * The values of the cards; undefined if the prompt's text is not at hand.
   * @returns {BoardValues | undefined}
   */
  boardValues() {
    const source = isWired(this.node, "blocks") ? undefined : this.promptSource();
    const { blocks, directions, takes } = this.now();
    return source && { text: String(source.widget.value), blocks, directions, takes };
  }

  /**
   * Write the values of the cards, and the locks of their shots, as one step that can be undone.
   * @param {BoardValues & { kept_blocks: string }} values
   */
  writeBoard({ text: prompt, ...values }) {
    const source = this.promptSource(); // none once the node is taken away, which a card with the focus still hears
    if (!source) return;
    /** @type {[GraphNode, Widget, unknown][]} */
    const changes = [];
    for (const [name, value] of Object.entries(values)) {
      const widget = widgetOf(this.node, name);
      if (!widget || this.read(name) === String(value)) continue;
      if (this.refuseWired(name)) return;
      changes.push([this.node, widget, value]);
    }
    if (source.widget.value !== prompt) {
      changes.push([source.node, source.widget, prompt]);
      this.noteShared(source.node);
    }
    setWidgets(changes);
  }

  /**
   * Say that other samplers have this prompt too, and so its new lines.
   * @param {GraphNode} node
   */
  noteShared(node) {
    const count = samplersOf(node).length;
    if (count > 1) toast("info", text("shared", { count }), text("sharedDetail"), LIFE);
  }

  /**
   * Change a widget as a hand would, as one step that can be undone.
   * @param {string} name
   * @param {string | boolean} value
   */
  write(name, value) {
    const widget = widgetOf(this.node, name);
    if (!widget || widget.value === value || this.refuseWired(name)) return;
    setWidgets([[this.node, widget, value]]);
  }

  /** @param {number} tau */
  writeTau(tau) {
    const source = this.tauSource();
    if (source) setWidgets([[source.node, source.widget, tau]]);
  }

  /**
   * Say so if another node gives this input, as the strip cannot change it then.
   * @param {string} name
   */
  refuseWired(name) {
    const isGiven = isWired(this.node, name);
    if (isGiven) toast("warn", text("wired"), text("wiredDetail", { name }), LIFE);
    return isGiven;
  }

  /** Whether the next run is a live session, or may be one as another node says. */
  get isLive() {
    const isSet = widgetOf(this.node, "live")?.value === true;
    return this.isBeginning || isSet || isWired(this.node, "live");
  }

  /** Send what was asked for in the strip too, which is no setting of the node. */
  sendLive() {
    const widget = widgetOf(this.node, "live");
    if (widget) widget.serializeValue = () => this.isBeginning || widget.value;
  }

  /**
   * Send what the squares show, though the widget may be for another number of blocks: lowering that and raising it again
   * loses nothing.
   * @param {string} name
   * @param {(value: string, blocks: number) => string} fit
   */
  sendFitted(name, fit) {
    const widget = widgetOf(this.node, name);
    if (!widget) return;
    widget.serializeValue = () => {
      if (isWired(this.node, "blocks")) return widget.value;
      return fit(String(widget.value), Number(this.read("blocks")));
    };
  }
}
