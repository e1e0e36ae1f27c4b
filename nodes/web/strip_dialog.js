// What a strip shows over the page: its film or its sheet, enlarged.
import { make, makeButton, nameElement } from "./dom.js";
import { text } from "./words.js";

/**
 * Open a dialog, of whose keys ComfyUI's shortcuts hear nothing, and call `closed` once it is closed.
 * @param {HTMLDialogElement} dialog
 * @param {string} label
 * @param {() => void} closed
 */
function open(dialog, label, closed) {
  dialog.setAttribute("aria-label", label);
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Show what the player shows, and beside it what a `comparison` shows, until it is closed by Escape, its button or a click on a
 * picture; then `anchor` has the focus again. `isOld`: whether a block was made for something else than is asked of it now.
 * @param {import("./strip_player.js").Player} player
 * @param {HTMLElement | undefined} anchor
 * @param {(number: number | null) => boolean} isOld
 * @param {import("./strip_compare.js").Comparison | null} [comparison]
 */
export function openLarge(player, anchor, isOld, comparison = null) {
  const dialog = make("dialog", "sdvg-large");
  const films = dialog.appendChild(make("div", "sdvg-films"));
  const before = comparison ? [films.appendChild(make("canvas", "", "", { role: "img" }))] : [];
  const canvas = films.appendChild(make("canvas", "", "", { role: "img" }));
  const captions = comparison ? [make("p"), make("p")] : [];
  films.append(...captions);
  const row = new FilmRow(player, () => dialog.close());
  dialog.append(row.element);
  const [film] = player.screens;
  const { changed } = player.acts;
  films.style.setProperty("--aspect", String(film.width / film.height));
  films.classList.toggle("two", Boolean(comparison));
  dialog.addEventListener("keydown", (event) => onKey(player, event));
  dialog.addEventListener("click", ({ target }) => {
    if (!(target instanceof Node && row.element.contains(target))) dialog.close();
  });
  player.screens.push(canvas);
  comparison?.enlarge(before[0], captions);
  player.acts.changed = (state) => {
    changed(state);
    row.show(state);
    canvas.classList.toggle("old", isOld(state.number));
    dialog.setAttribute("aria-label", text("large", { number: state.number ?? 1 }));
  };
  open(dialog, text("large", { number: player.at?.[0] ?? 1 }), () => {
    player.screens.length = 1;
    comparison?.enlarge(null, []);
    player.acts.changed = changed;
    player.release(true);
    anchor?.focus({ preventScroll: true });
  });
  films.tabIndex = -1; // the keys are for the film until somebody goes to a button
  films.focus();
  player.rest();
  player.tell();
}

/**
 * @param {import("./strip_player.js").Player} player
 * @param {KeyboardEvent} event
 */
function onKey(player, event) {
  player.touch();
  /** @type {Record<string, () => void>} */
  const keys = {
    " ": () => player.toggle(),
    p: () => player.toggle(),
    ArrowRight: () => player.step(1),
    ArrowLeft: () => player.step(-1),
  };
  const { target } = event;
  if (!(event.key in keys) || (target instanceof Element && target.closest("button, input")))
    return;
  event.preventDefault();
  if (!event.key.startsWith("Arrow")) player.release(true);
  keys[event.key]();
}

/**
 * Show a text to be copied, below sentences about it.
 * @param {string} label
 * @param {string[]} sentences
 * @param {string} shown
 */
export function openText(label, sentences, shown) {
  const dialog = make("dialog", "sdvg-large sdvg-text");
  const area = make("textarea", "", shown, { readonly: true, "aria-label": label });
  const row = make("div", "sdvg-large-row");
  const copied = make("span", "", "", { role: "status" });
  const copy = makeButton("sdvg-button", text("copy"), async () => {
    area.select();
    const isCopied = await writeClipboard(shown);
    copied.textContent = isCopied ? text("copied") : text("copyByHand");
  });
  const closing = makeButton("sdvg-button", "✕", () => dialog.close());
  nameElement(closing, text("closeLarge"));
  row.append(copy, copied, closing);
  const paragraphs = sentences.filter(Boolean).map((sentence) => make("p", "", sentence));
  dialog.append(make("h3", "", label), ...paragraphs, area, row);
  open(dialog, label, () => {});
  copy.focus();
}

/**
 * Whether a text is on the clipboard now. A page that did not come over HTTPS, or from this machine, may not write there.
 * @param {string} shown
 */
async function writeClipboard(shown) {
  try {
    await navigator.clipboard.writeText(shown);
    return true;
  } catch {
    return false;
  }
}

/** The time line below an enlarged film. */
class FilmRow {
  /**
   * @param {import("./strip_player.js").Player} player
   * @param {() => void} close
   */
  constructor(player, close) {
    this.player = player;
    this.element = make("div", "sdvg-large-row");
    this.play = makeButton("sdvg-button", "", () => {
      player.release(true);
      player.toggle();
    });
    this.line = make("input", "", "", { type: "range", min: 0, step: 1 });
    this.line.addEventListener("input", () => player.seek(Number(this.line.value)));
    this.time = make("span");
    const closing = makeButton("sdvg-button", "✕", close);
    nameElement(this.line, text("timeLine"));
    nameElement(closing, text("closeLarge"));
    this.element.append(this.play, this.line, this.time, closing);
  }

  /** @param {FilmState} state */
  show({ playing, at, all }) {
    this.time.textContent = text("time", { at: at.toFixed(1), all: all.toFixed(1) });
    this.play.textContent = playing ? "❚❚" : "▶";
    nameElement(this.play, playing ? text("pause") : text("play"));
    this.line.max = String(Math.max(0, this.player.frames - 1));
    this.line.value = String(this.player.index);
  }
}

/**
 * Show a sheet large, until it is closed; then it is where it was.
 * @param {HTMLElement} sheet
 */
export function openSheet(sheet) {
  if (sheet.closest("dialog")) return;
  const place = sheet.parentElement;
  const dialog = make("dialog", "sdvg-large");
  const chosen = () => {
    const cells = [...sheet.querySelectorAll("button")];
    return cells.find((cell) => cell.getAttribute("aria-checked") === "true");
  };
  const focused = chosen();
  dialog.append(sheet);
  const label = sheet.querySelector("[role=radiogroup]")?.getAttribute("aria-label") ?? "";
  open(dialog, label, () => {
    place?.append(sheet);
    chosen()?.focus({ preventScroll: true });
  });
  focused?.focus();
}
