// A contact sheet: the takes of one block side by side, made only up to it.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { make } from "./common.js";
import { takesOf, withTake } from "./blocks.js";
import { bitmapOf, fetchSprite } from "./strip_player.js";
import { words } from "./strip_words.js";

const AT_ONCE = 3; // takes of one wish

/** Queue runs that make the next takes of a block, one after the other; nothing behind the sampler runs but a report. */
export async function queueTakes(node, number, from) {
  const { output, workflow } = await app.graphToPrompt();
  // In a subgraph, a node's id in a run is a path, such as "5:12".
  const id = Object.keys(output).find((one) => output[one].class_type === node.comfyClass && one.split(":").at(-1) === String(node.id));
  const { inputs } = output[id];
  for (let take = from; take < from + AT_ONCE; take += 1) {
    const takes = withTake(String(inputs.takes ?? ""), inputs.blocks, number, take);
    const sampler = { ...output[id], inputs: { ...inputs, takes, until_block: number } };
    const end = { class_type: "SDVGRouteReport", inputs: { report: [id, 2], prompt_in_report: false }, _meta: { title: "SDVG" } };
    const target = `${id}.take`;
    await api.queuePrompt(0, { output: { ...output, [id]: sampler, [target]: end }, workflow }, { partialExecutionTargets: [target] });
  }
}

/** The takes of a block that are known: that of the run shown, and those made to compare with all else the same. */
export function takesKnown(number, shown, others, now) {
  const of = (log) => takesOf(log.takes).get(number) ?? 1;
  const alike = (log) => {
    const { signature } = log.info;
    const rest = (text) => JSON.stringify([...takesOf(text)].filter(([one]) => one < number));
    const prompts = (one) => JSON.stringify(one?.prompts);
    const same = ["rest", "router", "tau"].every((part) => signature?.[part] === now?.[part]) && prompts(signature) === prompts(now);
    const before = (letters) => (letters ?? "").slice(0, number).replace(/\.+$/, "");
    return same && log.info.kept === shown.info.kept && rest(log.takes) === rest(shown.takes) && before(log.directions) === before(shown.directions);
  };
  const made = shown?.events[number - 1];
  const known = new Map(made ? [[of(shown), made]] : []);
  for (const log of others.filter((one) => shown && [number, 0].includes(one.info.until ?? 0) && !one.failed && alike(one))) {
    const event = log.events.find((one) => one.number === number);
    if (event && !known.has(of(log))) known.set(of(log), event);
  }
  return [...known].sort(([a], [b]) => a - b);
}

/** The sheet's elements: `acts.close()`, `acts.enlarge()`, `acts.paint(canvas, event, frame)`. */
export class Sheet {
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-sheet");
    this.cells = this.element.appendChild(make("div", "sdvg-cells", "", { role: "radiogroup" }));
    this.tools = this.element.appendChild(make("div", "sdvg-tools"));
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.open = new AbortController();
  }

  /** While it is shown, Escape closes it wherever the focus is, unless something there takes that key itself. */
  listen(on) {
    this.open.abort();
    this.open = new AbortController();
    const { signal } = this.open;
    const taken = "dialog, input, textarea, [contenteditable], [role=menu], [role=dialog]";
    const onEscape = (event) => {
      if (event.key !== "Escape" || event.target.closest?.(taken) || document.querySelector("dialog[open]")) return;
      event.stopPropagation();
      this.acts.close();
    };
    if (on) document.addEventListener("keydown", onEscape, { signal, capture: true });
  }

  /** Show cells `{ key, event, label, old, chosen, act }`; one without an event is still made. */
  show(title, cells) {
    const drawn = JSON.stringify([title, ...cells.map(({ key, label, event, old }) => [key, label, event?.run, old])]);
    if (drawn === this.drawn) { // the same cells, which keep the focus
      for (const { key, chosen } of cells) this.element.querySelector(`[data-take="${key}"]`).setAttribute("aria-checked", String(chosen));
      return;
    }
    this.drawn = drawn;
    this.cells.setAttribute("aria-label", title);
    this.tools.replaceChildren();
    for (const [text, label, act] of [["✕", words().close, () => this.leave()], ["⤢", words().enlarge, () => this.acts.enlarge()]]) {
      const button = make("button", "sdvg-button", text, { type: "button", title: label, "aria-label": label });
      this.tools.appendChild(button).addEventListener("click", act);
    }
    const focused = this.element.contains(document.activeElement) && document.activeElement.dataset.take;
    this.cells.replaceChildren(...cells.map((one) => this.cell(one)));
    if (focused) this.element.querySelector(`[data-take="${focused}"]`)?.focus({ preventScroll: true });
  }

  cell({ key, event, label, old, chosen, act }) {
    const attributes = { type: "button", role: "radio", "data-take": key, "aria-checked": chosen, "aria-label": label, title: label };
    const cell = make("button", "sdvg-take", "", attributes);
    const canvas = cell.appendChild(make("canvas", old ? "blank old" : "blank"));
    cell.append(make("span", "", label));
    cell.disabled = !event;
    cell.addEventListener("click", act);
    if (!event?.sprite) return cell;
    const { frames } = event.sprite;
    const paint = (share) => bitmapOf(event) && this.acts.paint(canvas, event, Math.max(0, Math.min(frames - 1, Math.floor(share * frames))));
    fetchSprite(event, () => paint(0.5), new AbortController().signal);
    cell.addEventListener("pointermove", ({ clientX }) => {
      const { left, width } = cell.getBoundingClientRect();
      paint((clientX - left) / width);
    });
    cell.addEventListener("pointerleave", () => paint(0.5));
    return cell;
  }

  /** Back to the strip, if it is enlarged; else to the film. */
  leave() {
    const dialog = this.element.closest("dialog");
    if (dialog) dialog.close();
    else this.acts.close();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cells = [...this.element.querySelectorAll("button:not(:disabled)")];
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) cells[(cells.indexOf(document.activeElement) + by + cells.length) % cells.length]?.focus();
    else if (event.key === "Escape") this.leave();
    else if (event.key === "e") this.acts.enlarge();
    if (by || ["Escape", "Enter", " ", "e"].includes(event.key)) event.stopPropagation();
    if (by || event.key === "Escape") event.preventDefault();
  }
}
