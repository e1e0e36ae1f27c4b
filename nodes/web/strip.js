// The strip of one sampler: shows a run, and writes on the node's widgets what the next one is to do.
import { app } from "../../scripts/app.js";
import { after, isWired, locale, promptNode, rootGraph, setWidget, setWidgets } from "./common.js";
import { RATE, ROUTER, fateOf, fitDirections, fitTakes, framesOf, letterOf, lengthIn, takeOf, takesOf, withLetter, withTake } from "./blocks.js";
import { holdsLock, isAgain, isOld, keptBy, nextRun } from "./runs.js";
import { queueTakes, takesKnown } from "./strip_sheet.js";
import { openLarge, openSheet } from "./strip_dialog.js";
import { openMenu } from "./strip_menu.js";
import { writeBoard } from "./shots.js";
import { Board } from "./strip_board.js";
import { Comparison } from "./strip_compare.js";
import { Player } from "./strip_player.js";
import { roomFor } from "./strip_room.js";
import { HEIGHT } from "./strip_style.js";
import { TauLine } from "./strip_tau.js";
import { StripView } from "./strip_view.js";
import { words } from "./strip_words.js";

const TEXT_OF = { SDVGPrompt: "text", SDVGPocketModels: "prompt" }; // type of node -> its widget with the prompt
const SHOWN = ["blocks", "directions", "takes", "kept_blocks"]; // the widgets that the strip shows
const MOST_BLOCKS = 4096; // that the sampler takes, unless its widget says otherwise

const opened = new Map(); // workflow and node -> whether its cards are to be seen, where somebody said so

export class Strip {
  /**
   * `stop(log)` asks the server to stop the run that is shown, `keep(number, digest)` to write its first blocks to the disk and
   * tells whether it did, `undo(number)` tells that a step is undone from a square, `outlook(log)` returns what the next run can be foretold by, `others()` the runs that made takes to compare.
   */
  constructor(node, { stop, keep, undo, outlook, others }) {
    this.node = node;
    this.saveKept = keep;
    this.outlook = outlook;
    this.others = others;
    this.wanted = null; // the block whose takes are shown, and up to which take they are made
    this.other = null; // the run that is shown beside the one of the strip
    this.log = null;
    this.on = true;
    this.view = new StripView({
      open: (number, anchor) => this.open(number, anchor),
      key: (number, key) => this.onKey(number, key),
      look: (number, share) => this.look(number, share),
      choose: (number) => this.choose(number),
      enlarge: (number) => this.enlarge(number),
      step: (by) => this.player.step(by),
      play: () => this.player.toggle(),
      touch: () => this.player?.touch(),
      closeSheet: () => (this.other ? this.pair(null) : this.compare(null)),
      enlargeSheet: () => this.enlarge(),
      paint: (canvas, event, frame) => this.player.paint(canvas, event, frame),
      stop: () => stop(this.others().find((log) => log.going) ?? this.log),
      undo,
      shots: () => this.openShots(!this.shotsOn),
    });
    this.board = new Board({
      write: (board) => this.writeShots(board),
      keep: (number) => this.keepItem(number),
      release: (number) => this.releaseItem(number),
      paint: (canvas, event, frame) => this.player.paint(canvas, event, frame),
      choose: (number) => this.choose(number),
    });
    this.view.element.append(this.board.element);
    this.gate = new TauLine({ preview: (tau) => this.tryTau(tau), set: (tau) => this.setTau(tau) });
    this.view.element.prepend(this.gate.element);
    this.tau = null; // that is tried while its line moves
    this.grown = {}; // by how much the node has grown for a part
    this.player = new Player(this.view.film, {
      thumb: (number) => this.view.thumb(number),
      going: () => Boolean(this.log?.going),
      told: (state) => {
        this.view.tell(state);
        this.comparison?.tell();
      },
    });
    this.comparison = new Comparison(this.player, {
      close: () => this.pair(null),
      enlarge: () => this.enlarge(this.view.at),
      choose: (run) => this.pair(run),
      paint: (canvas, event, frame) => this.player.paint(canvas, event, frame),
    });
    for (const name of SHOWN.filter((one) => this.widget(one))) after(this.widget(name), "callback", () => this.refresh());
    this.nameOfLength = this.widget("blocks")?.label;
    this.sendFitted("directions", fitDirections);
    this.sendFitted("takes", fitTakes);
    this.view.openShots(false);
    this.show(null);
  }

  /** The same with and without a run, so that nothing below it moves when one begins. */
  get height() {
    return (this.on ? HEIGHT.playing : HEIGHT.still) + (this.shotsOn ? HEIGHT.shots : 0) + (this.tauOn ? HEIGHT.tau : 0);
  }

  // --- what it shows

  /** Show a run as far as it is known; null: none. */
  show(log) {
    if (log?.run !== this.log?.run) this.view.look();
    this.log = log;
    this.player.show(log?.run ?? null, log?.info.fps, log?.events ?? []);
    this.refresh();
    if (log?.events.length) this.view.reveal(log.events.length);
  }

  /** Show the newest block of the run that is shown. */
  grow() {
    this.drawSquare(this.log.events.length, this.asked());
    this.view.sum(this.log);
    this.view.reveal(this.log.events.length);
    this.drawSheet();
    this.drawShots();
    this.drawTau();
    this.player.wake();
  }

  /** Show how the run stands, and what the widgets say. */
  refresh() {
    if (this.writing) return; // it is refreshed once all is written
    this.shown = this.said();
    this.view.size(this.count());
    this.view.shape(Number(this.read("width")) / Number(this.read("height")) || 1);
    this.tellLength();
    const asked = this.asked();
    for (let number = 1; number <= this.view.count; number += 1) this.drawSquare(number, asked);
    this.view.sum(this.log);
    this.view.foretell(asked.next);
    this.drawSheet();
    this.drawShots();
    this.drawTau();
    this.view.offer({ going: Boolean(this.log?.going) || this.others().some((log) => log.going), stopping: Boolean(this.log?.stopping) });
  }

  /** Show what the widgets say, if that has changed. */
  sync() {
    if (this.said() !== this.shown) this.refresh();
  }

  said() {
    return [...SHOWN.map((name) => this.read(name)), ...Object.values(this.start()), this.promptSource()?.widget.value, this.tauSource()?.widget.value].join("|");
  }

  /** What the video starts from. */
  start() {
    const linked = (name) => this.linked((input) => input.name === name);
    return { clip: linked("continue_from"), image: linked("start_image"), wired: this.wired("blocks") || linked("start") };
  }

  /** Say how long the video will be, where its length is set. A name that the user gave stays. */
  tellLength() {
    const [widget, start] = [this.widget("blocks"), this.start()];
    if (!widget || this.node.inputs?.some((input) => input.widget?.name === "blocks" && input.label)) return;
    widget.label = start.wired ? this.nameOfLength : lengthIn(words(), Number(widget.value), start);
  }

  drawSquare(number, { directions, takes, blocks, kept, next }) {
    const letter = number > blocks ? ROUTER : letterOf(directions, number);
    const take = takes.get(number) ?? 1;
    const behind = next.from !== null && number >= next.from && number <= blocks;
    const again = behind && (this.tau === null ? isAgain(next, number) : number === next.from && !next.unsure);
    const may = behind && !again && this.tau !== null;
    const old = number <= blocks && isOld(next, number);
    this.view.draw(number, this.view.count, this.log?.events[number - 1], { letter, take, again, may, old, kept: number <= kept, usable: number <= blocks, from: this.from(number) });
  }

  /** The second of the video at which a block begins. */
  from(number) {
    const { clip, image } = this.start();
    return number > 1 ? framesOf(number - 1, { clip, image }) / RATE : 0;
  }

  /** What the widgets ask of the next run, perhaps with other `takes`, and what that makes again of the run that is shown. */
  asked(takes = this.read("takes"), lock = this.read("kept_blocks")) {
    const [blocks, directions] = [Number(this.read("blocks")), this.read("directions")];
    const over = this.log && !this.log.going;
    const outlook = over && this.outlook(this.log);
    const source = this.tauSource();
    // The server says what was set when it was asked last.
    if (over && outlook.now && source) outlook.now = { ...outlook.now, tau: this.tau ?? Number(source.widget.value) };
    const next = over ? nextRun(this.log, { directions, takes, blocks, lock }, outlook) : { from: null };
    return { directions, takes: takesOf(takes), blocks, kept: keptBy(lock), next };
  }

  /** How many blocks stay as they are. */
  get kept() {
    return keptBy(this.read("kept_blocks"));
  }

  // --- takes side by side

  /** Show the takes of a block in place of the film, with those in the making up to `upTo`; null: the film. */
  compare(number, upTo = 0) {
    if (number) this.pair(null);
    this.wanted = number && { number, upTo };
    if (number) this.player.stop();
    if (number) this.choose(number);
    this.view.compare(Boolean(number));
    this.drawSheet();
    if (!number) this.focusSquare();
  }

  /** After something on the strip was closed, the chosen square has the focus, unless it is elsewhere on the page. */
  focusSquare() {
    const elsewhere = document.activeElement !== document.body && !this.view.element.contains(document.activeElement);
    if (!elsewhere) this.view.square(this.view.at)?.focus({ preventScroll: true });
  }

  // --- two runs side by side

  /** Show another run, by its name, beside the one of the strip; null: the film alone. */
  pair(run) {
    const was = this.other;
    if (run && this.wanted) this.compare(null);
    this.other = this.before().find((one) => one.run === run) ?? null;
    if (!this.other && !was) return;
    this.drawPair();
    if (!this.other) this.focusSquare();
  }

  drawPair() {
    const runs = this.before();
    if (!runs.includes(this.other)) this.other = null; // it is forgotten, or shown
    this.comparison.show(this.log, this.other, runs);
    this.view.pair(this.comparison, Boolean(this.other));
  }

  /** The takes of a block that are known, `[take, event]`. */
  takesKnown(number) {
    return this.log ? takesKnown(number, this.log, this.others(), this.outlook(this.log).now) : [];
  }

  drawSheet() {
    if (this.other) this.drawPair();
    if (this.other) return;
    this.player.beside = [];
    if (!this.wanted) return;
    const [title, cells] = this.sheet();
    this.player.beside = cells.map(({ event }) => event).filter((event) => event?.sprite);
    this.view.sheet.show(title, cells);
  }

  /** The title and the cells of the sheet that is wanted. */
  sheet() {
    const { number, upTo } = this.wanted;
    const fate = (event) => event && fateOf(event)[locale()];
    const known = new Map(this.takesKnown(number));
    for (let take = upTo - 2; take <= upTo; take += 1) if (take > 1 && !known.has(take) && this.making) known.set(take, undefined);
    const shown = takeOf(this.log?.takes ?? "", number);
    const stale = isOld(this.asked(withTake(this.read("takes"), this.asked().blocks, number, shown)).next, number);
    const cell = ([key, event]) => {
      const label = [words().take(key), fate(event) ?? words().making, ...(Number.isFinite(event?.score) ? [event.score.toFixed(2)] : [])].join(" · ");
      const old = stale && key === shown; // the others were made with what is set now
      return { key, event, label, old, chosen: key === takeOf(this.read("takes"), number), act: () => this.retake(number, key) };
    };
    return [words().takesOf(number), [...known].sort(([a], [b]) => a - b).map(cell)];
  }

  /** Make three more takes of a block, one after the other, and show all that there are. */
  async makeTakes(number) {
    if (this.refuseWired("takes")) return;
    const last = Math.max(takeOf(this.read("takes"), number), ...this.takesKnown(number).map(([take]) => take));
    this.making = true;
    this.compare(number, last + 3);
    try {
      await queueTakes(this.node, number, last + 1);
    } catch (error) {
      this.making = false;
      this.drawSheet();
      if (!error.response) throw error; // what the server refused is said on the strip
    }
  }

  // --- shots

  /** Show the shots, if the prompt's text is at hand; with more than one, unless somebody closed them. */
  drawShots() {
    const source = this.wired("blocks") ? undefined : this.promptSource();
    const [blocks, directions, takes] = [Number(this.read("blocks")), this.read("directions"), this.read("takes")];
    const values = source && { text: String(source.widget.value), blocks, directions, takes };
    const { clip, image } = this.start();
    const most = this.widget("blocks")?.options?.max ?? MOST_BLOCKS;
    const events = this.on ? (this.log?.events ?? []) : [];
    this.board.show({ values, before: this.log?.info.before ?? 0, kept: this.kept, most, events, next: this.asked().next, start: { clip, image } });
    this.view.offerShots(source ? this.board.count : null);
    this.openShots();
  }

  /** Open or close the cards, where `on` says so; returns whether they are open. */
  openShots(on) {
    const key = `${rootGraph()?.id} ${this.node.id}`;
    if (on !== undefined) opened.set(key, on);
    const open = this.board.count > 0 && (opened.get(key) ?? this.board.count > 1);
    if (open === Boolean(this.shotsOn)) return open;
    this.shotsOn = open;
    this.view.openShots(open);
    this.resize("shots", open);
    return open;
  }

  /** Make room for a part, or take it away. */
  resize(part, open) {
    this.view.element.classList.toggle(`with-${part}`, open);
    if (window.LiteGraph.vueNodesMode || !this.node.computeSize) {
      delete this.grown[part];
      return;
    }
    const [width, before] = this.node.size;
    const least = this.node.computeSize()[1];
    const { height, grown } = roomFor({ height: before, least, usual: HEIGHT[part], grown: this.grown[part], open });
    this.grown[part] = grown;
    this.node.setSize([width, height]);
    this.node.setDirtyCanvas?.(true, true);
  }

  // --- tau

  /** The router's node and its widget with tau; undefined if it compares no scores, or if tau comes from elsewhere. */
  tauSource() {
    const slot = this.node.inputs?.findIndex(({ name }) => name === "router") ?? -1;
    const node = slot >= 0 && this.node.isInputConnected(slot) ? this.node.getInputNode(slot) : null;
    if (node?.comfyClass !== "SDVGQualityRouter") return undefined;
    const widget = node.widgets?.find(({ name }) => name === "policy.tau");
    const gate = ["reward", "hybrid"].includes(node.widgets?.find(({ name }) => name === "policy")?.value);
    return widget && gate && !isWired(node, widget.name) ? { node, widget } : undefined;
  }

  drawTau() {
    const source = this.tauSource();
    if (Boolean(source) !== Boolean(this.tauOn)) {
      this.tauOn = Boolean(source);
      this.resize("tau", this.tauOn);
    }
    if (!source) return;
    const { min = -3, max = 3 } = source.widget.options ?? {};
    this.gate.show({ tau: Number(source.widget.value), min, max, events: this.log?.events ?? [], count: this.view.count });
  }

  /** Mark what another tau would make again, and return that in words; null: what the next run makes. */
  tryTau(tau) {
    this.tau = tau;
    const asked = this.asked();
    for (let number = 1; number <= this.view.count; number += 1) this.drawSquare(number, asked);
    this.view.foretell(asked.next);
    const { known, atMost, from, count } = asked.next;
    if (!known) return "";
    const blocks = words().blocks(from, from + count - 1);
    if (from === null) return words().none;
    return atMost ? words().mayRemake(blocks) : words().remakes(blocks);
  }

  setTau(tau) {
    const source = this.tauSource();
    if (source) setWidget(source.node, source.widget, tau);
    this.refresh();
  }

  /** Write a board on the widgets, as one step that can be undone. */
  writeShots(board) {
    const values = writeBoard(board);
    const { node, widget } = this.promptSource() ?? {}; // none once the node is taken away, which a card with the focus still hears
    const own = ["blocks", "directions", "takes"].filter((name) => String(this.widget(name).value) !== String(values[name]));
    if (!widget || own.some((name) => this.refuseWired(name))) return;
    const changes = own.map((name) => [this.node, this.widget(name), values[name]]);
    if (widget.value !== values.text) changes.push([node, widget, values.text]);
    this.writing = true;
    try {
      setWidgets(changes);
    } finally {
      this.writing = false;
      this.refresh();
    }
  }

  count() {
    return Math.max(Number(this.read("blocks")), this.log?.of ?? 0);
  }

  /** Show a block's frame where the mouse is on it; null: the film goes on. */
  look(number, share) {
    this.view.look(this.log?.events[number - 1]);
    if (number) this.player.scrub(number, share);
    else this.player.release();
  }

  /** The film goes on from this block. */
  choose(number) {
    this.view.rove(number);
    if (this.player.held?.[0] !== number) this.look(number, null);
    this.player.release(true);
    this.view.look(this.log?.events[number - 1]);
  }

  enlarge(number) {
    if (this.wanted) openSheet(this.view.sheet.element);
    else if (this.log?.events[number - 1]?.sprite) openLarge(this.player, this.view.square(number), (shown) => isOld(this.asked().next, shown), this.other && this.comparison);
  }

  end() {
    this.player.end();
    this.view.sheet.listen(false);
  }

  play(on) {
    this.on = on;
    this.player.turn(on);
    this.view.element.classList.toggle("playing", on);
    this.node.setDirtyCanvas?.(true, true);
  }

  // --- what it writes

  widget(name) {
    return this.node.widgets?.find((widget) => widget.name === name);
  }

  /** What a widget says; if another node gives the input, what it gave the run that is shown. */
  read(name) {
    if (this.wired(name)) return String(this.log?.[name === "blocks" ? "of" : name] ?? "");
    return String(this.widget(name)?.value ?? "");
  }

  /**
   * Send what the squares show, though the widget may be for another number of blocks: lowering that and raising it again
   * loses nothing.
   */
  sendFitted(name, fit) {
    const widget = this.widget(name);
    if (!widget) return;
    widget.serializeValue = () => (this.wired("blocks") ? widget.value : fit(String(widget.value), this.asked().blocks));
  }

  /** Whether another node gives this input. */
  wired(name) {
    return this.linked((input) => input.widget?.name === name);
  }

  /** Whether a wire ends at an input of this kind. */
  linked(isIt) {
    return Boolean(this.node.inputs?.some((input, slot) => isIt(input) && this.node.isInputConnected(slot)));
  }

  /** Say so if another node gives this input, as the strip cannot change it then. */
  refuseWired(name) {
    const wired = this.wired(name);
    if (wired) app.extensionManager.toast.add({ severity: "warn", summary: words().wired, detail: words().wiredDetail(name), life: 6000 });
    return wired;
  }

  /** Change a widget as a hand would, as one step that can be undone. */
  write(name, value) {
    const widget = this.widget(name);
    if (!widget || widget.value === value) return;
    if (this.refuseWired(name)) return;
    setWidget(this.node, widget, value);
  }

  // --- the text of the prompt

  /** The node and the widget with the text of the prompt; undefined if the text comes from elsewhere. */
  promptSource() {
    const node = promptNode(this.node);
    const name = TEXT_OF[node?.comfyClass];
    const widget = node?.widgets?.find((one) => one.name === name);
    return widget && !isWired(node, name) ? { node, widget } : undefined;
  }

  direct(number, letter) {
    this.write("directions", withLetter(this.read("directions"), this.asked().blocks, number, letter));
  }

  /** Keep the first blocks as they are, once the server has written them. */
  async keep(number, digest, silent = false) {
    if (!this.refuseWired("kept_blocks") && (await this.saveKept(number, digest, silent))) this.write("kept_blocks", `${number}:${digest}`);
  }

  retake(number, take) {
    this.write("takes", withTake(this.read("takes"), this.asked().blocks, number, take));
  }

  /** The other whole runs of this sampler that are remembered, oldest first. */
  before() {
    return this.log ? this.others().filter((one) => one.run !== this.log.run && !one.info.until && !one.failed && one.events.length) : [];
  }

  usable(number) {
    return this.view.square(number)?.getAttribute("aria-disabled") === "false";
  }

  open(number, anchor = this.view.square(number)) {
    if (this.usable(number)) openMenu(anchor, words().menu(number), this.items(number).filter((items) => items.length));
  }

  /**
   * What keeps the blocks up to one as they are, `old` in words if some were made for something else than is asked now; null if the
   * run that is shown does not have them, or if nothing would be made.
   */
  keepItem(number) {
    const { blocks, next } = this.asked();
    const digest = number > this.kept && number < blocks && this.log?.done?.digests?.[number - 1];
    if (!digest) return null;
    const old = isOld(next, number) ? words().blocks(next.old, number) : "";
    return { key: "k", text: old ? words().lockOld(old) : words().lock(number), old, act: () => this.keep(number, digest) };
  }

  /** What gives up a kept block, and those after it, as they follow from it; all of them if the run that is shown does not have those before it. */
  releaseItem(number) {
    const held = this.log && holdsLock(this.log, this.read("kept_blocks"));
    const digest = held && this.log.done.digests[number - 2];
    const first = digest && number <= this.kept ? number : 1;
    const act = () => (first > 1 ? this.keep(first - 1, digest, true) : this.write("kept_blocks", ""));
    const { blocks, next } = this.asked(this.read("takes"), first > 1 ? `${first - 1}:${digest}` : "");
    const text = words().unlock(first, this.kept);
    if (!next.known) return { text, act };
    const cost = next.from ? words().changes(words().blocks(next.from, blocks)) : words().free;
    return { text: words().does(text, cost), act };
  }

  /** What can be done at a block, in groups: its menu has them all, and a key on its square does one. */
  items(number) {
    const event = this.log?.events[number - 1];
    const film = event?.sprite ? [{ key: "e", text: words().enlarge, act: () => this.enlarge(number) }] : [];
    const before = this.before().at(-1);
    if (before && this.on) film.push({ key: "b", text: this.other ? words().close : words().twoRuns, act: () => this.pair(this.other ? null : before.run) });
    if (!this.usable(number)) return [film];
    const item = this.keepItem(number);
    const keep = item ? [item] : [];
    if (this.kept) keep.push(this.releaseItem(number));
    if (number <= this.kept) return [keep, film];
    const [letter, take] = [letterOf(this.read("directions"), number), takeOf(this.read("takes"), number)];
    const said = (act) => () => {
      act();
      this.view.say(number);
    };
    const choice = (key, text) => ({ key, text, checked: letter === key, act: said(() => this.direct(number, key)) });
    const choices = [choice(".", words().router), choice("t", words().target), choice("d", words().draft)];
    const begin = this.board.beginning(number);
    if (begin) choices.push({ key: "w", text: words().promptFrom(number), act: () => this.openShots(true) && begin() });
    const takes = [{ key: "n", text: words().another(take + 1), act: said(() => this.retake(number, take + 1)) }];
    if (event && !this.log.going) takes.push({ key: "c", text: words().compare, act: () => this.makeTakes(number) });
    if (take > 1) takes.push({ text: words().first, act: () => this.retake(number, 1) });
    return [choices, takes, keep, film];
  }

  /** Whether a key on a square did something. */
  onKey(number, key) {
    if (key === "p") return this.player.toggle() ?? true;
    if (key === "e") return this.enlarge(number) ?? true;
    const item = this.items(number).flat().find((one) => one.key === key);
    item?.act();
    return Boolean(item);
  }
}
