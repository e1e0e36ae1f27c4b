// Workflows saved by older versions: first a router had three inputs under every route. Those that the route reads are its inputs now;
// the others go, and a message names one that was changed. Then the routes lacked an input that they have now, and the route *balanced*
// had a number of first blocks.
import { register, toast } from "./frontend.js";
import { text } from "./words.js";

const ROUTER = "SDVGQualityRouter";
/** @type {Record<string, number>} */
const OLDER = { forced_blocks: 1, bail_out: 0, handover: 0 }; // with their defaults
const NAMES = Object.keys(OLDER);
/** @type {Record<string, number>} */
const ADDED = { target_steps: 0 }; // what routes got after their other inputs, with its default
const BEFORE = 2; // widgets before the route's own: the file and the route
const AFTER = 2; // and after them: device, dtype
const LIFE = 8000; // ms of a message

/**
 * @param {unknown} policy
 * @param {NodeData} definition
 */
function inputsOf(policy, definition) {
  const options = definition.input?.required?.policy?.[1]?.options ?? [];
  const { required, optional } = options.find(({ key }) => key === policy)?.inputs ?? {};
  return Object.keys({ ...required, ...optional });
}

/**
 * Whether a saved router has the route *balanced* of first blocks, which is *first* now.
 * @param {SavedNode} saved
 */
function hasFirstBlocks({ widgets_values: values }) {
  return Array.isArray(values) && values[1] === "balanced" && typeof values[2] === "number";
}

/**
 * A saved router under the names of this version.
 * @param {SavedNode} saved
 * @returns {SavedNode}
 */
function renamed(saved) {
  if (!hasFirstBlocks(saved)) return saved;
  const [file, , ...others] = saved.widgets_values ?? [];
  return { ...saved, widgets_values: [file, "first", ...others] };
}

/**
 * A saved router with the widgets of this version, and the changed values that no widget takes; null if it is no older one.
 * @param {SavedNode} saved
 * @param {NodeData} definition
 */
function converted({ widgets_values: values, inputs: saved = [] }, definition) {
  if (!Array.isArray(values)) return null;
  const inputs = inputsOf(values[1], definition);
  const added = Object.keys(ADDED).filter((name) => inputs.includes(name));
  if (saved.some(({ name }) => added.includes(name.replace("policy.", "")))) return null;
  const known = inputs.length - added.length; // of the version before
  const kept = NAMES.filter((name) => inputs.includes(name));
  const file = values.slice(0, BEFORE);
  const own = values.slice(BEFORE, -AFTER);
  const ends = [...added.map((name) => ADDED[name]), ...values.slice(-AFTER)];
  if (own.length === known) return { lost: [], values: [...file, ...own, ...ends] };
  if (own.length !== known + NAMES.length - kept.length) return null;
  const older = own.slice(-NAMES.length);
  const stays = older.filter((_, place) => kept.includes(NAMES[place]));
  const lost = NAMES.filter((name, place) => !kept.includes(name) && older[place] !== OLDER[name]);
  return { lost, values: [...file, ...own.slice(0, -NAMES.length), ...stays, ...ends] };
}

/**
 * The saved sockets under the names of this version, without those that nobody reads or is wired to.
 * @param {SavedNode} saved
 * @param {NodeData} definition
 */
function sockets(saved, definition) {
  const inputs = inputsOf(saved.widgets_values?.[1], definition);
  const renamed = saved.inputs?.map((input) => {
    if (!NAMES.includes(input.name) || !inputs.includes(input.name)) return input;
    const name = `policy.${input.name}`;
    return { ...input, name, widget: { name } };
  });
  return renamed?.filter(({ name, link }) => !NAMES.includes(name) || (link ?? null) !== null);
}

register({
  name: "sdvg.older_graphs",
  beforeRegisterNodeDef(type, definition) {
    if (definition.name !== ROUTER) return;
    const prototype = /** @type {{ configure: (saved: SavedNode) => void }} */ (type.prototype);
    const { configure } = prototype;
    /** @param {SavedNode} older */
    prototype.configure = function (older) {
      const saved = renamed(older);
      const current = converted(saved, definition);
      const inputs = sockets(saved, definition);
      const values = current ? { widgets_values: current.values } : {};
      const result = configure.call(this, { ...saved, ...(inputs && { inputs }), ...values });
      if (current?.lost.length) {
        const names = current.lost.join(", ");
        toast("info", text("older"), text("olderDetail", { names }), LIFE);
      }
      if (saved !== older) toast("info", text("older"), text("olderBalanced"), LIFE);
      return result;
    };
  },
});
