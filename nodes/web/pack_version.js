// A saved workflow says which version of the pack saved it. Opening one from a newer version shows a warning: this version
// ignores what it does not know, and refuses to run it (nodes/known.py).
import { app } from "../../scripts/app.js";
import { PREFIX, after, allNodes, locale } from "./common.js";

const VERSION = "0.1.0"; // as in pyproject.toml
const PACK = "sdvg";
const WORDS = {
  en: {
    summary: "This workflow is from a newer SDVG",
    detail: (saved) => `Version ${saved} saved it, and this is ${VERSION}, whose nodes may lack some of its inputs or options. Update the pack, or check the SDVG nodes before you run it.`,
  },
  zh: {
    summary: "此工作流来自更新版本的 SDVG",
    detail: (saved) => `它由版本 ${saved} 保存，而这里是 ${VERSION}，节点可能缺少其中的某些输入或选项。请更新本扩展，或在运行前检查 SDVG 节点。`,
  },
};

function isNewer(one, other) {
  const [a, b] = [one, other].map((version) => String(version).split(".").map((part) => Number(part) || 0));
  const differs = a.findIndex((part, i) => part !== (b[i] ?? 0));
  return differs >= 0 && a[differs] > (b[differs] ?? 0);
}

/** Write the version on a node that is being saved, under the names that ComfyUI uses. A newer version stays. */
function state(saved) {
  const { cnr_id, ver } = (saved.properties ??= {});
  if (cnr_id !== PACK || !isNewer(ver, VERSION)) Object.assign(saved.properties, { cnr_id: PACK, ver: VERSION });
}

function announce() {
  const stated = [...allNodes()].map((node) => node.properties).filter((p) => p?.cnr_id === PACK).map((p) => p.ver ?? "0");
  const newest = stated.reduce((a, b) => (isNewer(b, a) ? b : a), VERSION);
  if (newest === VERSION) return;
  const { summary, detail } = WORDS[locale()];
  app.extensionManager.toast.add({ severity: "warn", summary, detail: detail(newest) });
}

app.registerExtension({
  name: "sdvg.pack_version",
  beforeRegisterNodeDef(type, { name }) {
    if (!name.startsWith(PREFIX)) return;
    after(type.prototype, "onSerialize", state);
  },
  afterConfigureGraph: announce,
});
