// How many blocks a live session makes ahead of the film, and for how many minutes it is held: settings of the page. The server says
// what is usual, and the most.
import { SAMPLER, register, setting } from "./frontend.js";

const AHEAD = "sdvg.live.ahead";
const PATIENCE = "sdvg.live.patience";

/** What is set. */
export function livePace() {
  return { ahead: Number(setting(AHEAD)), patience: Number(setting(PATIENCE)) };
}

let isOffered = false;

register({
  name: "sdvg.live_pace",
  beforeRegisterNodeDef(_, { name, input }) {
    const pace = name === SAMPLER && input?.optional?.live?.[1]?.sdvg_pace;
    if (!pace || isOffered) return;
    isOffered = true;
    const settings = [
      numberSetting(AHEAD, "Ahead", pace.ahead),
      numberSetting(PATIENCE, "Patience", pace.patience),
    ];
    register({ name: "sdvg.live_pace.settings", settings });
  },
});

/**
 * A setting whose words are in locales/<language>/settings.json.
 * @param {string} id
 * @param {string} group
 * @param {[number, number]} range the usual value, and the most
 */
function numberSetting(id, group, [usual, most]) {
  return {
    id,
    category: ["SDVG", "Live", group],
    name: id,
    type: "number",
    attrs: { min: 1, max: most, step: 1, showButtons: true },
    defaultValue: usual,
  };
}
