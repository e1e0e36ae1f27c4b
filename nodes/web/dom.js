// Elements, and callbacks that are heard.

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [className]
 * @param {string} [text]
 * @param {Record<string, unknown>} [attributes]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, className = "", text = "", attributes = {}) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/**
 * A button that does something.
 * @param {string} className
 * @param {string} text
 * @param {(event: MouseEvent) => void} act
 * @param {Record<string, unknown>} [attributes]
 */
export function makeButton(className, text, act, attributes = {}) {
  const button = make("button", className, text, { type: "button", ...attributes });
  button.addEventListener("click", act);
  return button;
}

/**
 * Name an element for the mouse and for a screen reader.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function nameElement(element, text) {
  element.title = text;
  element.setAttribute("aria-label", text);
}

/**
 * Leave undoing to the page where the focus is in no box: the browser would take back words there too, which were entered long ago.
 * @param {HTMLElement} element
 */
export function leaveUndo(element) {
  element.addEventListener("keydown", (event) => {
    const isBox = event.target instanceof Element && event.target.matches("textarea, input");
    const isUndo = (event.ctrlKey || event.metaKey) && /^[zy]$/i.test(event.key);
    if (isUndo && !isBox) event.preventDefault();
  });
  element.addEventListener("beforeinput", (event) => {
    const isHistory = event.inputType.startsWith("history");
    if (isHistory && event.target !== document.activeElement) event.preventDefault();
  });
}

/**
 * Keep what is typed while one of an element's buttons has the focus from ComfyUI's hotkeys, which open panels and delete the selected
 * node. Shortcuts with Control, Meta or Alt, Tab, Escape, Enter and the arrows go on to it.
 * @param {HTMLElement} element
 */
export function keepTyped(element) {
  element.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, altKey } = event;
    const isTyped = key.length === 1 || key === "Backspace" || key === "Delete";
    if (isTyped && !ctrlKey && !metaKey && !altKey) event.stopPropagation();
  });
}

/**
 * Have `act` called after a method or callback of an object, as it was called itself.
 * @param {any} object
 * @param {string} name
 * @param {(...given: any[]) => void} act
 */
export function after(object, name, act) {
  const before = object[name];
  /** @this {unknown} @param {unknown[]} given */
  object[name] = function (...given) {
    const answer = before?.apply(this, given);
    act.apply(this, given);
    return answer;
  };
}
