// What the browser tests of the strip look at and press.
const { quiet } = require("./page.js");

const SAMPLER = "SDVGSpeculativeSampler";

/** What the strip shows, and what the widgets beside it say. */
function look(page) {
  return page.evaluate((type) => {
    const sampler = window.app.graph.nodes.find((node) => node.type === type);
    const value = (name) => sampler.widgets.find((widget) => widget.name === name).value;
    const said = (name) => document.querySelector(`.sdvg-${name}`).textContent;
    const squares = [...document.querySelectorAll(".sdvg-squares button")].map((square) => ({
      outcome: square.dataset.outcome ?? null, letter: square.dataset.letter ?? null, take: square.dataset.take ?? null,
      earlier: square.classList.contains("earlier"), outlined: getComputedStyle(square).outlineStyle !== "none",
      label: square.getAttribute("aria-label"), reached: square.tabIndex === 0,
    }));
    const stop = document.querySelector(".sdvg-stop");
    const focused = document.activeElement;
    return {
      squares, button: document.querySelector(".sdvg-more").textContent, directions: value("directions"), takes: value("takes"),
      legend: said("legend"), detail: said("detail"), next: said("next"), said: said("status"),
      stop: { text: stop.textContent, shown: stop.checkVisibility(), enabled: !stop.disabled },
      focus: focused.dataset.number ?? focused.getAttribute("role") ?? focused.tagName,
      modified: Boolean(window.app.extensionManager.workflow?.activeWorkflow?.isModified),
    };
  }, SAMPLER);
}

function square(page, number) {
  return page.locator(`.sdvg-squares [data-number="${number}"]`);
}

function known(page) {
  return page.evaluate(async () => (await (await fetch("/api/sdvg/runs")).json()).runs);
}

/** Until the run is over and the film plays. */
async function settled(page) {
  const over = () => !document.querySelector(".sdvg-stop").checkVisibility() && "shown" in document.querySelector(".sdvg-film").dataset;
  await page.waitForFunction(over);
  await page.waitForFunction(() => document.querySelector(".sdvg-next").textContent); // the forecast
  await quiet(page);
}

/** Empty both widgets as a hand would. */
function clear(type) {
  const sampler = window.app.graph.nodes.find((node) => node.type === type);
  for (const name of ["directions", "takes"]) {
    const widget = sampler.widgets.find((one) => one.name === name);
    widget.value = "";
    widget.callback?.("");
  }
}

module.exports = { SAMPLER, look, square, known, settled, clear };
