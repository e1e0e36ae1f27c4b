// Workflows saved before each route had inputs of its own: a router then had three under every route. Those that the route reads
// are its inputs now; the others go, and one that was changed is told.
import { app } from "../../scripts/app.js";
import { locale } from "./common.js";

const ROUTER = "SDVGQualityRouter";
const OLDER = { forced_blocks: 1, bail_out: 0, handover: 0 }; // with their defaults
const NAMES = Object.keys(OLDER);
const [BEFORE, AFTER] = [2, 2]; // widgets before the route's own (the file and the route), and after them (device, dtype)
const WORDS = {
  en: { summary: "This workflow is from an older SDVG", detail: (names) => `Its router had ${names} changed, which its route does not read. They are left out.` },
  zh: { summary: "此工作流来自旧版本的 SDVG", detail: (names) => `其路由节点改动过 ${names}，而所选路线并不读取。这些已略去。` },
};

function inputsOf(policy, definition) {
  const options = definition.input.required.policy[1].options;
  const { required, optional } = options.find(({ key }) => key === policy)?.inputs ?? {};
  return Object.keys({ ...required, ...optional });
}

/** A saved router with the widgets of this version, and the changed values that no widget takes; null if it is no older one. */
function converted(saved, definition) {
  const values = saved.widgets_values;
  if (!Array.isArray(values)) return null;
  const inputs = inputsOf(values[1], definition);
  const kept = NAMES.filter((name) => inputs.includes(name));
  if (kept.length === NAMES.length || values.length !== BEFORE + inputs.length + NAMES.length - kept.length + AFTER) return null;
  const from = values.length - AFTER - NAMES.length;
  const older = values.slice(from, from + NAMES.length);
  const stays = older.filter((_, place) => kept.includes(NAMES[place]));
  const lost = NAMES.filter((name, place) => !kept.includes(name) && older[place] !== OLDER[name]);
  return { lost, values: [...values.slice(0, from), ...stays, ...values.slice(-AFTER)] };
}

/** The saved sockets under the names of this version, without those that nobody reads or is wired to. */
function sockets(saved, definition) {
  const inputs = inputsOf(saved.widgets_values?.[1], definition);
  const renamed = saved.inputs?.map((input) =>
    NAMES.includes(input.name) && inputs.includes(input.name)
      ? { ...input, name: `policy.${input.name}`, widget: { name: `policy.${input.name}` } }
      : input,
  );
  return renamed?.filter((input) => !NAMES.includes(input.name) || (input.link ?? null) !== null);
}

app.registerExtension({
  name: "sdvg.older_graphs",
  beforeRegisterNodeDef(type, definition) {
    if (definition.name !== ROUTER) return;
    const configure = type.prototype.configure;
    type.prototype.configure = function (saved) {
      const current = converted(saved, definition);
      const inputs = sockets(saved, definition);
      const result = configure.call(this, { ...saved, ...(inputs && { inputs }), ...(current && { widgets_values: current.values }) });
      if (current?.lost.length) {
        const { summary, detail } = WORDS[locale()];
        app.extensionManager.toast.add({ severity: "info", summary, detail: detail(current.lost.join(", ")), life: 8000 });
      }
      return result;
    };
  },
});
