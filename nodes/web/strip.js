// The strip of one sampler: shows a run, and writes on the node's widgets what the next one is to do.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { ROUTER, fitDirections, fitTakes, letterOf, takeOf, takesOf, withLetter, withTake } from "./directions.js";
import { framesOf, lengthIn } from "./length.js";
import { nextRun } from "./next_run.js";
import { openMenu } from "./strip_menu.js";
import { Player } from "./strip_player.js";
import { HEIGHT } from "./strip_style.js";
import { StripView } from "./strip_view.js";
import { words } from "./strip_words.js";

const SHOWN = ["blocks", "directions", "takes"]; // the widgets that the strip shows

export class Strip {
  /**
   * `stop(log)` asks the server to stop the run that is shown, `undo(number)` tells that a step is undone from a square,
   * `outlook(log)` returns what the next run can be foretold by.
   */
  constructor(node, { stop, undo, outlook }) {
    this.node = node;
    this.outlook = outlook;
    this.log = null;
    this.on = true;
    this.view = new StripView({
      open: (number) => this.open(number),
      key: (number, key) => this.onKey(number, key),
      look: (number) => this.look(number),
      stop: () => stop(this.log),
      undo,
    });
    this.player = new Player(this.view.film);
    for (const name of SHOWN) this.follow(name);
    this.nameOfLength = this.widget("blocks")?.label;
    this.sendFitted("directions", fitDirections);
    this.sendFitted("takes", fitTakes);
    this.show(null);
  }

  /** Whether there is something to play. */
  get playing() {
    return this.on && Boolean(this.log?.events.some((event) => event.sprite));
  }

  get height() {
    return this.playing ? HEIGHT.playing : HEIGHT.still;
  }

  // --- what it shows

  /** Show a run as far as it is known; null: none. */
  show(log) {
    this.log = log;
    this.player.show(log?.run ?? null, log?.info.fps, log?.events ?? []);
    this.refresh();
    this.fit();
    if (log?.events.length) this.view.reveal(log.events.length);
  }

  /** Show the newest block of the run that is shown. */
  grow() {
    this.drawSquare(this.log.events.length, this.asked());
    this.view.sum(this.log);
    this.view.reveal(this.log.events.length);
    if (this.log.events.length === 1) this.fit();
    this.player.wake();
  }

  /** Show how the run stands, and what the widgets say. */
  refresh() {
    this.shown = this.said();
    this.view.size(this.count());
    this.tellLength();
    const asked = this.asked();
    for (let number = 1; number <= this.view.count; number += 1) this.drawSquare(number, asked);
    this.view.sum(this.log);
    this.view.foretell(asked.next);
    this.view.offer({ going: Boolean(this.log?.going), stopping: Boolean(this.log?.stopping) });
  }

  /** Show what the widgets say, if that has changed. */
  sync() {
    if (this.said() !== this.shown) this.refresh();
  }

  said() {
    return [...SHOWN.map((name) => this.read(name)), ...Object.values(this.start())].join("|");
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
    const frames = framesOf(Number(widget.value), start);
    widget.label = start.wired ? this.nameOfLength : `${this.nameOfLength} (${lengthIn(words(), frames, start.clip)})`;
  }

  drawSquare(number, { directions, takes, blocks, next }) {
    const letter = number > blocks ? ROUTER : letterOf(directions, number);
    const take = takes.get(number) ?? 1;
    const again = next.from !== null && !next.atMost && number >= next.from && number <= blocks;
    this.view.draw(number, this.view.count, this.log?.events[number - 1], { letter, take, again, usable: number <= blocks });
  }

  /** What the widgets ask of the next run, and what that makes again of the run that is shown. */
  asked() {
    const [blocks, directions, takes] = [Number(this.read("blocks")), this.read("directions"), this.read("takes")];
    const over = this.log && !this.log.going;
    const next = over ? nextRun(this.log, { directions, takes, blocks }, this.outlook(this.log)) : { from: null };
    return { directions, takes: takesOf(takes), blocks, next };
  }

  count() {
    return Math.max(Number(this.read("blocks")), this.log?.of ?? 0);
  }

  look(number) {
    const event = this.log?.events[number - 1];
    this.view.look(event);
    this.player.only(event ? number : null);
  }

  play(on) {
    this.on = on;
    this.player.turn(on);
    this.fit();
  }

  /** Have room for the film while there is one. */
  fit() {
    this.view.element.classList.toggle("playing", this.playing);
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

  /** Notice when a widget is changed by hand. */
  follow(name) {
    const widget = this.widget(name);
    if (!widget) return;
    const { callback } = widget;
    widget.callback = (...news) => {
      const answer = callback?.apply(widget, news);
      this.refresh();
      return answer;
    };
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

  /** Change a widget as a hand would, as one step that can be undone. */
  write(name, value) {
    const widget = this.widget(name);
    if (!widget || widget.value === value) return;
    if (this.wired(name)) {
      app.extensionManager.toast.add({ severity: "warn", summary: words().wired, detail: words().wiredDetail(name), life: 6000 });
      return;
    }
    const { canvas } = app;
    const before = widget.value;
    canvas.emitBeforeChange?.();
    try {
      widget.value = value;
      widget.callback?.(value, canvas, this.node);
      this.node.onWidgetChanged?.(name, value, before, widget);
      this.node.setDirtyCanvas?.(true, true);
    } finally {
      canvas.emitAfterChange?.();
    }
  }

  direct(number, letter) {
    this.write("directions", withLetter(this.read("directions"), this.asked().blocks, number, letter));
  }

  retake(number, take) {
    this.write("takes", withTake(this.read("takes"), this.asked().blocks, number, take));
  }

  usable(number) {
    return this.view.square(number)?.getAttribute("aria-disabled") === "false";
  }

  open(number) {
    if (!this.usable(number)) return;
    const letter = letterOf(this.read("directions"), number);
    const take = takeOf(this.read("takes"), number);
    const choice = (key, text) => ({ key, text, checked: letter === key, act: () => this.onKey(number, key) });
    const takes = [{ key: "n", text: words().another(take + 1), act: () => this.onKey(number, "n") }];
    if (take > 1) takes.push({ text: words().first, act: () => this.retake(number, 1) });
    const choices = [choice(".", words().router), choice("t", words().target), choice("d", words().draft)];
    openMenu(this.view.square(number), words().menu(number), [choices, takes]);
  }

  /** Keys on a square, and in its menu: one of the three letters, or `n` for another take. */
  onKey(number, key) {
    if (![".", "t", "d", "n"].includes(key) || !this.usable(number)) return false;
    if (key === "n") this.retake(number, takeOf(this.read("takes"), number) + 1);
    else this.direct(number, key);
    this.view.said.textContent = this.view.square(number).title;
    return true;
  }
}

/** Ask the server to end a run after the block it is making. */
export async function stopRun(log) {
  const answer = await api.fetchApi("/sdvg/stop", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ node: log.info.node }),
  });
  if (answer.ok) return;
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `${answer.status} ${answer.statusText}`);
}
