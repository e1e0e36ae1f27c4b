// How well a text can be read, for functions that run in the page: there, `contrastMeter()` returns a function
// `contrast(below, ink)`, by WCAG 2.2. `ink`: the text's colour and its opacity; `below`: those under it, the lowest first.

/** Make the meter known in the page, until it is loaded anew. */
async function installContrast(page) {
  await page.evaluate(`void (window.contrastMeter = ${contrastMeter})`);
}

/** It runs in the page, so it needs nothing from here. */
function contrastMeter() {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    for (const [colour, opacity] of colours) {
      pen.globalAlpha = opacity;
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
    }
    return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const luminance = (colour) => {
    const linear = colour.map((part) => part / 255).map((p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  return (below, ink) => {
    const [dark, light] = [over(below), over([...below, ink])].map(luminance).sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
}

module.exports = { installContrast };
