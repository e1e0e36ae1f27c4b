// Shows a run's notes on SDVG Report, and its record, folded: ComfyUI shows no text below a picture. None of it is saved.
import { app } from "../../scripts/app.js";
import { locale, make, onOutput } from "./common.js";
import { addElement } from "./same_place.js";

const REPORT = "SDVGRouteReport";
const SIZE = [480, 560]; // of a new node: its picture can be read
const FOLDED = 26; // height of the line that unfolds the record
const RECORD = 160; // height of the record
const NOTES = 92; // most height of the notes, which scroll
const MARGIN = 20; // that ComfyUI's canvas leaves free above and below
const WORDS = {
  en: { record: "The record as JSON", empty: "After a run the record appears here as JSON.", notes: "Notes on the run" },
  zh: { record: "JSON 记录", empty: "运行之后，这里以 JSON 显示记录。", notes: "运行说明" },
};
const STYLE = `
.sdvg-json { flex: none; color: var(--input-text, #ddd); font: 12px/${FOLDED}px Inter, Arial, sans-serif; }
.sdvg-notes { box-sizing: border-box; max-height: ${NOTES}px; margin: 0; padding: 2px 5px 2px 20px; overflow: auto; scrollbar-width: thin;
  line-height: 17px; user-select: text; }
.sdvg-notes:empty { display: none; }
.sdvg-json summary { padding: 0 5px; border-radius: 4px; cursor: pointer; }
.sdvg-json summary:focus-visible { outline: 2px solid #3b9bff; outline-offset: -2px; }
.sdvg-json textarea { box-sizing: border-box; width: 100%; height: ${RECORD}px; margin: 0; padding: 5px; resize: none;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 4px; background: var(--comfy-input-bg, #222);
  color: var(--input-text, #ddd); font: 11px/15px monospace; white-space: pre; overflow: auto; scrollbar-width: thin; }
.sdvg-json textarea::placeholder { color: inherit; opacity: 0.8; }
`;

function recordElement() {
  const element = make("div", "sdvg-json");
  const { record, empty, notes } = WORDS[locale()];
  const list = element.appendChild(make("ul", "sdvg-notes", "", { "aria-label": notes, tabindex: "0" }));
  list.dataset.captureWheel = "true";
  const fold = element.appendChild(make("details"));
  fold.appendChild(make("summary", "", record));
  const area = fold.appendChild(make("textarea", "", "", { readonly: "", placeholder: empty, "aria-label": record }));
  area.dataset.captureWheel = "true"; // in Nodes 2.0 the wheel scrolls it once it is clicked; otherwise it zooms the canvas
  return element;
}

/** Of the palette in force, by its text: every frontend says it in a way of its own, and some palettes are the user's. */
function palette() {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--input-text").trim() || "#ddd";
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return red + green + blue > (3 * 255) / 2 ? "dark" : "light";
}

function addRecord(node) {
  if (node.comfyClass !== REPORT) return;
  const element = recordElement();
  const widget = addElement(node, "record", "sdvg_json", element);
  // As high as it is and no higher, so that the picture has the rest.
  widget.computeLayoutSize = undefined;
  const [list, fold] = element.children;
  widget.computeSize = () => [0, FOLDED + MARGIN + list.offsetHeight + (fold.open ? RECORD : 0)];
  const theme = node.widgets?.find(({ name }) => name === "theme");
  if (theme) theme.serializeValue = () => (theme.value === "auto" ? palette() : theme.value);
  fold.addEventListener("toggle", () => node.setDirtyCanvas?.(true, true));
  node.setSize?.(SIZE);
}

onOutput(REPORT, (node, { sdvg_report: record }) => {
  const widget = node.widgets?.find(({ name }) => name === "record");
  if (!widget || !record) return;
  const text = record.join("\n");
  widget.element.querySelector("textarea").value = text;
  widget.element.querySelector("ul").replaceChildren(...(JSON.parse(text).notes ?? []).map((note) => make("li", "", note)));
  node.setDirtyCanvas?.(true, true);
});

app.registerExtension({
  name: "sdvg.report_json",
  setup: () => document.head.append(make("style", "", STYLE)),
  nodeCreated: addRecord,
});
