// The film of a strip, enlarged over the page.
import { make } from "./common.js";
import { words } from "./strip_words.js";

/** Show what the player shows, until it is closed by Escape or a click; then `anchor` has the focus again. */
export function openLarge(player, anchor) {
  const dialog = make("dialog", "sdvg-large");
  const canvas = dialog.appendChild(make("canvas", ""));
  const time = dialog.appendChild(make("p", ""));
  const [film] = player.screens;
  const { told } = player;
  const say = (state) => {
    told(state);
    time.textContent = words().time(state.at.toFixed(1), state.all.toFixed(1));
  };
  canvas.style.setProperty("--aspect", film.width / film.height);
  canvas.setAttribute("role", "img");
  dialog.setAttribute("aria-label", words().large(player.at[0]));
  const keys = { " ": () => player.toggle(), p: () => player.toggle(), ArrowRight: () => player.step(1), ArrowLeft: () => player.step(-1) };
  dialog.addEventListener("keydown", (event) => {
    event.stopPropagation(); // none of ComfyUI's shortcuts
    player.touch();
    if (!(event.key in keys)) return;
    event.preventDefault();
    if (!event.key.startsWith("Arrow")) player.release(true);
    keys[event.key]();
  });
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    player.screens.length = 1;
    player.told = told;
    player.release(true);
    dialog.remove();
    anchor?.focus({ preventScroll: true });
  });
  document.body.append(dialog);
  player.screens.push(canvas);
  player.told = say;
  dialog.showModal();
  player.rest();
}
