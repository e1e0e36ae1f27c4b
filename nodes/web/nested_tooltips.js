// ComfyUI writes English tooltips on the widgets of a chosen option, such as policy.tau, and then prefers them to the
// translations that it looks up for all other widgets. Removing them makes it look up translations here too.
import { app } from "../../scripts/app.js";
import { PREFIX, allNodes } from "./common.js";

function forget(node) {
  if (!node.comfyClass?.startsWith(PREFIX)) return;
  for (const widget of node.widgets ?? []) {
    if (widget.name.includes(".")) widget.tooltip = undefined;
  }
}

/** Choosing another option creates new widgets. */
function forgetOnChange(node) {
  if (!node.comfyClass?.startsWith(PREFIX)) return;
  for (const widget of node.widgets ?? []) {
    const { callback } = widget;
    widget.callback = function (...news) {
      const answer = callback?.apply(this, news);
      forget(node);
      return answer;
    };
  }
  forget(node);
}

app.registerExtension({
  name: "sdvg.nested_tooltips",
  nodeCreated: forgetOnChange,
  afterConfigureGraph: () => [...allNodes()].forEach(forget),
});
