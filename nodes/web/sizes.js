// Sides and heights in pixels of the canvas, before it is zoomed, that both the code and style.css need.

// Of the strip's widget; ComfyUI's canvas leaves 10 pixels free on each side. `line`: of the line of text that ComfyUI puts below it
// during a run.
/** @type {Record<string, number>} */
export const HEIGHT = { playing: 300, still: 124, shots: 152, tau: 50, line: 64 };
export const SIDE = { least: 34, most: 60, many: 26 }; // of a square with a picture

/**
 * Tell an element's style such sizes, as variables by their names.
 * @param {HTMLElement} element
 * @param {Record<string, number>} sizes
 */
export function setSizes(element, sizes) {
  for (const [name, pixels] of Object.entries(sizes))
    element.style.setProperty(`--${name}`, `${pixels}px`);
}
