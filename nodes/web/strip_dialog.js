// What a strip shows over the page: its film or its sheet, enlarged.
import { make } from "./common.js";
import { words } from "./strip_words.js";

/** Open a dialog, of whose keys ComfyUI's shortcuts hear nothing, and call `closed` once it is closed. */
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
 * picture; then `anchor` has the focus again. `old(number)`: whether a block was made for something else than is asked of it now.
 */
export function openLarge(player, anchor, old, comparison = null) {
  const dialog = make("dialog", "sdvg-large");
  const films = dialog.appendChild(make("div", "sdvg-films"));
  const canvases = (comparison ? ["", ""] : [""]).map(() => films.appendChild(make("canvas", "", "", { role: "img" })));
  const captions = comparison ? canvases.map(() => films.appendChild(make("p", ""))) : [];
  const row = dialog.appendChild(make("div", "sdvg-large-row"));
  const play = row.appendChild(make("button", "sdvg-button", "", { type: "button" }));
  const line = row.appendChild(make("input", "", "", { type: "range", min: 0, step: 1, title: words().timeLine, "aria-label": words().timeLine }));
  const time = row.appendChild(make("span", ""));
  const close = row.appendChild(make("button", "sdvg-button", "✕", { type: "button", title: words().closeLarge, "aria-label": words().closeLarge }));
  const [film] = player.screens;
  const { told } = player;
  const say = (state) => {
    told(state);
    time.textContent = words().time(state.at.toFixed(1), state.all.toFixed(1));
    play.textContent = state.playing ? "❚❚" : "▶";
    play.title = state.playing ? words().pause : words().play;
    play.setAttribute("aria-label", play.title);
    Object.assign(line, { max: Math.max(0, player.frames - 1), value: player.index });
    canvases.at(-1).classList.toggle("old", old(state.number));
    dialog.setAttribute("aria-label", words().large(state.number));
  };
  films.style.setProperty("--aspect", film.width / film.height);
  films.classList.toggle("two", Boolean(comparison));
  const keys = { " ": () => player.toggle(), p: () => player.toggle(), ArrowRight: () => player.step(1), ArrowLeft: () => player.step(-1) };
  dialog.addEventListener("keydown", (event) => {
    player.touch();
    if (!(event.key in keys) || event.target.closest("button, input")) return;
    event.preventDefault();
    if (!event.key.startsWith("Arrow")) player.release(true);
    keys[event.key]();
  });
  play.addEventListener("click", () => {
    player.release(true);
    player.toggle();
  });
  line.addEventListener("input", () => player.seek(Number(line.value)));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", ({ target }) => target.closest(".sdvg-large-row") || dialog.close());
  player.screens.push(canvases.at(-1));
  comparison?.enlarge(canvases[0], captions);
  player.told = say;
  open(dialog, words().large(player.at[0]), () => {
    player.screens.length = 1;
    comparison?.enlarge(null, []);
    player.told = told;
    player.release(true);
    anchor?.focus({ preventScroll: true });
  });
  films.tabIndex = -1; // the keys are for the film until somebody goes to a button
  films.focus();
  player.rest();
  player.tell();
}

/** Show a sheet large, until it is closed; then it is where it was. */
export function openSheet(sheet) {
  if (sheet.closest("dialog")) return;
  const [place, dialog] = [sheet.parentElement, make("dialog", "sdvg-large")];
  const focused = sheet.querySelector('[aria-checked="true"]');
  dialog.append(sheet);
  open(dialog, sheet.querySelector("[role=radiogroup]").getAttribute("aria-label"), () => {
    place.append(sheet);
    sheet.querySelector('[aria-checked="true"]')?.focus({ preventScroll: true });
  });
  focused?.focus();
}
