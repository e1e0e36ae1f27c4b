// A contact sheet: the takes of one block side by side. Runs that make takes to compare go only as far as that block.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { locale, make } from "./common.js";
import { takesOf, withTake } from "./directions.js";
import { fateOf } from "./fates.js";
import { fetchSprite } from "./sprites.js";
import { words } from "./strip_words.js";

const AT_ONCE = 3; // takes of one wish

/** Queue runs that make the next takes of a block, one after the other; nothing behind the sampler runs but a report. */
export async function queueTakes(node, number, from) {
  const { output, workflow } = await app.graphToPrompt();
  const id = Object.keys(output).find((one) => output[one].class_type === node.comfyClass && sameNode(one, node));
  const own = (name) => {
    const upstream = new Set();
    const visit = (one) => {
      if (upstream.has(one) || !output[one]) return;
      upstream.add(one);
      for (const value of Object.values(output[one].inputs)) if (Array.isArray(value)) visit(String(value[0]));
    };
    visit(name);
    return upstream;
  };
  const needed = Object.fromEntries([...own(id)].map((one) => [one, output[one]]));
  const { inputs } = output[id];
  for (let take = from; take < from + AT_ONCE; take += 1) {
    const takes = withTake(String(inputs.takes ?? ""), inputs.blocks, number, take);
    const sampler = { ...output[id], inputs: { ...inputs, takes, until_block: number } };
    const end = { class_type: "SDVGRouteReport", inputs: { report: [id, 2], prompt_in_report: false }, _meta: { title: "SDVG" } };
    await api.queuePrompt(0, { output: { ...needed, [id]: sampler, [`${id}.take`]: end }, workflow });
  }
}

/** Whether an id of a run, such as "5:12", is a node's. */
function sameNode(id, node) {
  return id === String(node.id) || id.endsWith(`:${node.id}`);
}

/** The takes of a block that are known: that of the run shown, and those made to compare with all else the same. */
export function takesKnown(number, shown, others, now) {
  const of = (log) => takesOf(log.takes).get(number) ?? 1;
  const alike = (log) => {
    const { signature } = log.info;
    const rest = (text) => JSON.stringify([...takesOf(text)].filter(([one]) => one < number));
    const prompts = (one) => JSON.stringify(one?.prompts);
    const same = ["rest", "router"].every((part) => signature?.[part] === now?.[part]) && prompts(signature) === prompts(now);
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

/** The sheet's elements: `acts.choose(take)`, `acts.close()`, `acts.paint(canvas, event, frame)`. */
export class Sheet {
  constructor(acts) {
    this.acts = acts;
    this.element = make("div", "sdvg-sheet");
    this.element.setAttribute("role", "radiogroup");
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.number = null;
  }

  /** Show the takes of a block, `[take, event]`; one without an event is being made. */
  show(number, takes, chosen) {
    this.number = number;
    this.element.setAttribute("aria-label", words().takesOf(number));
    const close = make("button", "sdvg-button", "✕");
    close.type = "button";
    close.title = words().close;
    close.setAttribute("aria-label", words().close);
    close.addEventListener("click", () => this.acts.close());
    const focused = this.element.contains(document.activeElement) && document.activeElement.dataset.take;
    this.element.replaceChildren(...takes.map(([take, event]) => this.cell(take, event, take === chosen)), close);
    if (focused) this.element.querySelector(`[data-take="${focused}"]`)?.focus({ preventScroll: true });
  }

  cell(take, event, chosen) {
    const cell = make("button", "sdvg-take");
    cell.type = "button";
    cell.dataset.take = take;
    cell.setAttribute("role", "radio");
    cell.setAttribute("aria-checked", String(chosen));
    const canvas = cell.appendChild(make("canvas", "blank"));
    const score = Number.isFinite(event?.score) ? ` · ${event.score.toFixed(2)}` : "";
    const label = event ? `${words().take(take)} · ${fateOf(event)[locale()]}${score}` : `${words().take(take)} · ${words().making}`;
    cell.append(make("span", "", label));
    cell.setAttribute("aria-label", label);
    cell.disabled = !event;
    if (event?.sprite) {
      const paint = (frame) => this.acts.paint(canvas, event, frame);
      const middle = () => paint(event.sprite.frames >> 1);
      fetchSprite(event, middle, new AbortController().signal);
      cell.addEventListener("pointermove", ({ clientX }) => {
        const { left, width } = cell.getBoundingClientRect();
        paint(Math.max(0, Math.min(event.sprite.frames - 1, Math.floor(((clientX - left) / width) * event.sprite.frames))));
      });
      cell.addEventListener("pointerleave", middle);
    }
    cell.addEventListener("click", () => this.acts.choose(take));
    return cell;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cells = [...this.element.querySelectorAll("button:not(:disabled)")];
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) cells[(cells.indexOf(document.activeElement) + by + cells.length) % cells.length]?.focus();
    else if (event.key === "Escape") this.acts.close();
    if (by || ["Escape", "Enter", " "].includes(event.key)) event.stopPropagation();
    if (by) event.preventDefault();
  }
}
