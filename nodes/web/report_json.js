// Shows a run's notes on SDVG Report, and its record, folded: ComfyUI shows no text below a picture. None of it is saved.
import { make } from "./dom.js";
import { onOutput, register, widgetOf } from "./frontend.js";
import { addElement } from "./node_elements.js";
import { setSizes } from "./sizes.js";
import { text } from "./words.js";

const REPORT = "SDVGRouteReport";
/** @type {[number, number]} */
const SIZE = [480, 560]; // of a new node: its picture can be read
const FOLDED = 26; // height of the line that unfolds the record
const RECORD = 160; // height of the record
const NOTES = 4 + 5 * 17; // most height of the notes, which scroll: five whole lines
const MARGIN = 20; // that ComfyUI's canvas leaves free above and below

function newRecord() {
  const element = make("div", "sdvg-json");
  setSizes(element, { folded: FOLDED, notes: NOTES, record: RECORD });
  const list = make("ul", "sdvg-notes", "", { "aria-label": text("notes"), tabindex: "0" });
  list.dataset.captureWheel = "true";
  const fold = make("details");
  const area = make("textarea", "", "", {
    readonly: "",
    placeholder: text("noRecord"),
    "aria-label": text("record"),
  });
  area.dataset.captureWheel = "true"; // in Nodes 2.0 the wheel scrolls it once it is clicked; otherwise it zooms the canvas
  fold.append(make("summary", "", text("record")), area);
  element.append(list, fold);
  return { element, list, fold, area };
}

/** @type {Map<string, string>} */
const palettes = new Map(); // colour of text -> whether it is of a dark or a light palette

/** Of the palette in force, by its text: every frontend says it in a way of its own, and some palettes are the user's. */
function palette() {
  const colour = getComputedStyle(document.body).getPropertyValue("--input-text").trim();
  const known = palettes.get(colour) ?? brightness(colour || "#ddd");
  palettes.set(colour, known);
  return known;
}

/** @param {string} colour of text */
function brightness(colour) {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  if (!pen) return "dark";
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return red + green + blue > (3 * 255) / 2 ? "dark" : "light";
}

/** @type {WeakMap<GraphNode, ReturnType<typeof newRecord>>} */
const records = new WeakMap();

/** @param {GraphNode} node */
function addRecord(node) {
  if (node.comfyClass !== REPORT) return;
  const record = newRecord();
  const { element, list, fold } = record;
  records.set(node, record);
  const widget = addElement(node, "record", "sdvg_json", element);
  // As high as it is and no higher, so that the picture has the rest. ComfyUI asks at every drawn frame: nothing is measured then.
  let notes = 0;
  new ResizeObserver(([{ borderBoxSize }]) => {
    notes = borderBoxSize[0].blockSize;
    node.setDirtyCanvas?.(true, true);
  }).observe(list);
  widget.computeLayoutSize = undefined;
  widget.computeSize = () => [0, FOLDED + MARGIN + notes + (fold.open ? RECORD : 0)];
  const theme = widgetOf(node, "theme");
  if (theme) theme.serializeValue = () => (theme.value === "auto" ? palette() : theme.value);
  fold.addEventListener("toggle", () => node.setDirtyCanvas?.(true, true));
  node.setSize?.(SIZE);
}

onOutput(REPORT, (node, { sdvg_report: lines }) => {
  const record = records.get(node);
  if (!record || !lines) return;
  const json = lines.join("\n");
  /** @type {{ notes?: string[] }} */
  const { notes = [] } = JSON.parse(json);
  record.area.value = json;
  record.list.replaceChildren(...notes.map((note) => make("li", "", note)));
  node.setDirtyCanvas?.(true, true);
});

register({ name: "sdvg.report_json", nodeCreated: addRecord });
