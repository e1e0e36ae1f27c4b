// A small menu beside an element, for mouse, keyboard and screen reader. One is open at a time.
import { make } from "./common.js";

let close = () => {};

/** `groups`: lists of items { text, key, act, checked }; those with `checked` are choices of which one holds. */
export function openMenu(anchor, label, groups) {
  close();
  const menu = make("div", "sdvg-menu", "", { role: "menu", "aria-label": label });
  menu.append(...groups.flatMap((items, i) => (i ? [make("hr", ""), group(items)] : [group(items)])));
  document.body.append(menu);
  place(menu, anchor);
  anchor.setAttribute("aria-expanded", "true");
  const listening = new AbortController();
  const { signal } = listening;
  close = (focus = false) => {
    close = () => {};
    listening.abort();
    menu.remove();
    anchor.setAttribute("aria-expanded", "false");
    if (focus) anchor.focus({ preventScroll: true });
  };
  menu.addEventListener("keydown", (event) => onKey(menu, event), { signal });
  menu.addEventListener("pointerover", ({ target }) => target.closest("[role^=menuitem]")?.focus(), { signal });
  const elsewhere = ({ target }) => menu.contains(target) || close();
  for (const type of ["pointerdown", "wheel"]) document.addEventListener(type, elsewhere, { signal, capture: true });
  for (const type of ["resize", "blur"]) window.addEventListener(type, () => close(), { signal });
  (menu.querySelector("[aria-checked=true]") ?? itemsOf(menu)[0]).focus({ preventScroll: true });
}

function group(items) {
  const element = make("div", "", "", { role: "group" });
  element.append(...items.map(item));
  return element;
}

function item({ text, key, act, checked }) {
  const role = checked === undefined ? { role: "menuitem" } : { role: "menuitemradio", "aria-checked": checked };
  const element = make("div", "", text, { ...role, tabindex: -1 });
  if (key) {
    element.setAttribute("aria-keyshortcuts", key);
    element.append(make("kbd", "", key, { "aria-hidden": true }));
  }
  element.addEventListener("click", () => {
    close(true);
    act();
  });
  return element;
}

function itemsOf(menu) {
  return [...menu.querySelectorAll("[role^=menuitem]")];
}

const STEPS = { ArrowDown: (i, n) => (i + 1) % n, ArrowUp: (i, n) => (i + n - 1) % n, Home: () => 0, End: (i, n) => n - 1 };

function onKey(menu, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  event.stopPropagation(); // none of ComfyUI's shortcuts
  const items = itemsOf(menu);
  const at = items.indexOf(document.activeElement);
  const short = items.find((one) => one.getAttribute("aria-keyshortcuts") === event.key);
  if (event.key === "Tab") close(true);
  else if (event.key === "Escape") close(true);
  else if (event.key in STEPS) items[STEPS[event.key](at, items.length)].focus();
  else if (event.key === "Enter" || event.key === " ") items[at]?.click();
  else if (short) short.click();
  if (event.key !== "Tab") event.preventDefault();
}

/** Below the anchor, or above it where there is no room. */
function place(menu, anchor) {
  const { left, top, bottom } = anchor.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = bottom + 4 + height <= window.innerHeight;
  menu.style.left = `${Math.max(4, Math.min(left, window.innerWidth - width - 4))}px`;
  menu.style.top = `${Math.max(4, below ? bottom + 4 : top - 4 - height)}px`;
}
