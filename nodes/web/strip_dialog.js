// What a strip shows over the page: its film or its sheet, enlarged, and a question.
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

/** Show what the player shows, until it is closed by Escape or a click; then `anchor` has the focus again. */
export function openLarge(player, anchor) {
  const dialog = make("dialog", "sdvg-large");
  const canvas = dialog.appendChild(make("canvas", "", "", { role: "img" }));
  const time = dialog.appendChild(make("p", ""));
  const [film] = player.screens;
  const { told } = player;
  const say = (state) => {
    told(state);
    time.textContent = words().time(state.at.toFixed(1), state.all.toFixed(1));
    dialog.setAttribute("aria-label", words().large(state.number));
  };
  canvas.style.setProperty("--aspect", film.width / film.height);
  const keys = { " ": () => player.toggle(), p: () => player.toggle(), ArrowRight: () => player.step(1), ArrowLeft: () => player.step(-1) };
  dialog.addEventListener("keydown", (event) => {
    player.touch();
    if (!(event.key in keys)) return;
    event.preventDefault();
    if (!event.key.startsWith("Arrow")) player.release(true);
    keys[event.key]();
  });
  dialog.addEventListener("click", () => dialog.close());
  player.screens.push(canvas);
  player.told = say;
  open(dialog, words().large(player.at[0]), () => {
    player.screens.length = 1;
    player.told = told;
    player.release(true);
    anchor?.focus({ preventScroll: true });
  });
  player.rest();
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

/** Ask for a text; resolves to null if it is left with Escape. Enter takes it, with Shift it begins a line. */
export function askText(title, hint, value) {
  const dialog = make("dialog", "sdvg-large sdvg-ask");
  const area = make("textarea", "", "", { rows: 3, "aria-label": title });
  area.value = value;
  const take = make("button", "sdvg-button", words().accept, { type: "button" });
  dialog.append(make("p", "", title), area, make("p", "", hint), take);
  take.addEventListener("click", () => dialog.close("taken"));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    dialog.close("taken");
  });
  return new Promise((resolve) => {
    open(dialog, title, () => resolve(dialog.returnValue === "taken" ? area.value : null));
    area.focus();
  });
}
