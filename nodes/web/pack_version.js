// A saved workflow says which version of the pack saved it. Opening one from a newer version shows a warning: this version
// ignores what it does not know, and refuses to run it (nodes/schema.py).
import { after } from "./dom.js";
import { PREFIX, allNodes, register, toast } from "./frontend.js";
import { text } from "./words.js";

const VERSION = "0.1.0"; // as in pyproject.toml
const PACK = "sdvg";

/**
 * @param {string} version
 * @param {string} other
 */
function isNewer(version, other) {
  const [a, b] = [version, other].map((name) => name.split(".").map((part) => Number(part) || 0));
  const differs = a.findIndex((part, i) => part !== (b[i] ?? 0));
  return differs >= 0 && a[differs] > (b[differs] ?? 0);
}

/**
 * Write the version on a node that is being saved, under the names that ComfyUI uses. A newer version stays.
 * @param {SavedNode} saved
 */
function stateVersion(saved) {
  const properties = (saved.properties ??= {});
  const { cnr_id: pack, ver = "0" } = properties;
  if (pack !== PACK || !isNewer(ver, VERSION))
    Object.assign(properties, { cnr_id: PACK, ver: VERSION });
}

function announce() {
  const ours = [...allNodes()].filter(({ properties }) => properties?.cnr_id === PACK);
  const versions = ours.map(({ properties }) => String(properties?.ver ?? "0"));
  const newest = versions.reduce((a, b) => (isNewer(b, a) ? b : a), VERSION);
  if (newest === VERSION) return;
  toast("warn", text("newer"), text("newerDetail", { saved: newest, version: VERSION }));
}

register({
  name: "sdvg.pack_version",
  beforeRegisterNodeDef(type, { name }) {
    if (name.startsWith(PREFIX)) after(type.prototype, "onSerialize", stateVersion);
  },
  afterConfigureGraph: announce,
});
