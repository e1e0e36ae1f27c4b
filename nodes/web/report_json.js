// Shows a run's record on the Route Report, as ComfyUI shows no text below a picture. None of it is saved.
import { app } from "../../scripts/app.js";
import { locale, make, onOutput } from "./common.js";

const REPORT = "SDVGRouteReport";
const HEIGHT = 120; // of the widget
const WORDS = {
  en: { record: "The record as JSON", empty: "After a run the record appears here as JSON." },
  zh: { record: "JSON 记录", empty: "运行之后，这里以 JSON 显示记录。" },
};
const STYLE = `
.sdvg-json { box-sizing: border-box; width: 100%; min-height: ${HEIGHT - 20}px; margin: 0; padding: 5px; resize: none;
  border: 1px solid var(--border-color, #4e4e4e); border-radius: 4px; background: var(--comfy-input-bg, #222);
  color: var(--input-text, #ddd); font: 11px/15px monospace; white-space: pre; overflow: auto; scrollbar-width: thin; }
`;

function addRecord(node) {
  if (node.comfyClass !== REPORT) return;
  const area = make("textarea", "sdvg-json");
  area.readOnly = true;
  area.placeholder = WORDS[locale()].empty;
  area.setAttribute("aria-label", WORDS[locale()].record);
  area.dataset.captureWheel = "true"; // in Nodes 2.0 the wheel scrolls it once it is clicked; otherwise it zooms the canvas
  const fixed = { getMinHeight: () => HEIGHT, getMaxHeight: () => HEIGHT };
  // `options.serialize` keeps the widget out of the prompt, `serialize` out of the saved workflow.
  const widget = node.addDOMWidget("record", "sdvg_json", area, { serialize: false, ...fixed });
  widget.serialize = false;
}

onOutput(REPORT, (node, { sdvg_report: record }) => {
  const widget = node.widgets?.find(({ name }) => name === "record");
  if (widget && record) widget.element.value = record.join("");
});

app.registerExtension({
  name: "sdvg.report_json",
  setup: () => document.head.append(make("style", "", STYLE)),
  nodeCreated: addRecord,
});
