// A small menu beside an element, for mouse, keyboard and screen reader. One is open at a time.
import { make } from "./dom.js";

/** @type {(focus?: boolean) => void} */
let close = () => {};

/**
 * Items with `checked` are choices of which one holds.
 * @param {HTMLElement} anchor
 * @param {string} label
 * @param {MenuItem[][]} groups
 */
export function openMenu(anchor, label, groups) {
  close();
  const menu = make("div", "sdvg-menu", "", { role: "menu", "aria-label": label });
  for (const [i, items] of groups.entries()) {
    if (i) menu.append(make("hr"));
    menu.append(newGroup(items));
  }
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
  menu.addEventListener("pointerover", (event) => focusItem(event.target), { signal });
  /** @param {Event} event */
  const elsewhere = ({ target }) => {
    if (!(target instanceof Node && menu.contains(target))) close();
  };
  for (const type of ["pointerdown", "wheel"])
    document.addEventListener(type, elsewhere, { signal, capture: true });
  for (const type of ["resize", "blur"]) window.addEventListener(type, () => close(), { signal });
  const items = itemsOf(menu);
  const chosen = items.find((item) => item.getAttribute("aria-checked") === "true");
  (chosen ?? items[0])?.focus({ preventScroll: true });
}

/** @param {EventTarget | null} target */
function focusItem(target) {
  const item = target instanceof Element && target.closest("[role^=menuitem]");
  if (item instanceof HTMLElement) item.focus();
}

/** @param {MenuItem[]} items */
function newGroup(items) {
  const element = make("div", "", "", { role: "group" });
  element.append(...items.map(newItem));
  return element;
}

/** @param {MenuItem} item */
function newItem({ text, key, act, checked }) {
  const element = make("div", "", text, { role: "menuitem", tabindex: -1 });
  if (checked !== undefined) {
    element.setAttribute("role", "menuitemradio");
    element.setAttribute("aria-checked", String(checked));
  }
  if (key) {
    element.setAttribute("aria-keyshortcuts", key);
    const shown = key.replace("ArrowLeft", "←").replace("ArrowRight", "→");
    element.append(make("kbd", "", shown, { "aria-hidden": true }));
  }
  element.addEventListener("click", () => {
    close(true);
    act();
  });
  return element;
}

/**
 * @param {HTMLElement} menu
 * @returns {HTMLElement[]}
 */
function itemsOf(menu) {
  return [...menu.querySelectorAll("div")].filter((item) => item.matches("[role^=menuitem]"));
}

/** @type {Record<string, (i: number, count: number) => number>} */
const STEPS = {
  ArrowDown: (i, count) => (i + 1) % count,
  ArrowUp: (i, count) => (i + count - 1) % count,
  Home: () => 0,
  End: (_, count) => count - 1,
};

/**
 * @param {HTMLElement} menu
 * @param {KeyboardEvent} event
 */
function onKey(menu, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  event.stopPropagation(); // none of ComfyUI's shortcuts
  const items = itemsOf(menu);
  const at = items.findIndex((item) => item === document.activeElement);
  const short = items.find((item) => item.getAttribute("aria-keyshortcuts") === event.key);
  if (event.key === "Tab" || event.key === "Escape") close(true);
  else if (event.key in STEPS) items[STEPS[event.key](at, items.length)].focus();
  else if (event.key === "Enter" || event.key === " ") items[at]?.click();
  else if (short) short.click();
  if (event.key !== "Tab") event.preventDefault();
}

/**
 * Below the anchor, or above it where there is no room; all of it in the window, whose height it has at most.
 * @param {HTMLElement} menu
 * @param {HTMLElement} anchor
 */
function place(menu, anchor) {
  const { left, top, bottom } = anchor.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const isBelow = bottom + 4 + height <= window.innerHeight;
  menu.style.left = `${Math.max(4, Math.min(left, window.innerWidth - width - 4))}px`;
  const least = isBelow ? bottom + 4 : top - 4 - height;
  menu.style.top = `${Math.max(4, Math.min(least, window.innerHeight - height - 4))}px`;
}
