// How a block came about. Names and colours are those of sdvg_core/report/summary.py; ink is the text colour that reads best
// on each, and author the model whose latents the block has.
const GIVEN = { colour: "#555555", ink: "#fff", author: null, en: "kept as it is", zh: "保持不变" }; // from an earlier run
export const FATES = {
  forced: { colour: "#0072B2", ink: "#fff", author: "target", en: "forced", zh: "强制" },
  kept: { colour: "#009E73", ink: "#000", author: "drafter", en: "kept", zh: "保留" },
  remade: { colour: "#D55E00", ink: "#000", author: "target", en: "remade", zh: "重做" },
  drafted_unseen: { colour: "#93D6C1", ink: "#000", author: "drafter", en: "kept unscored", zh: "保留（未评分）" },
  target_unseen: { colour: "#F3BC90", ink: "#000", author: "target", en: "target without draft", zh: "目标模型（无草稿）" },
  bailed_out: { colour: "#CC79A7", ink: "#000", author: "target", en: "bailed out", zh: "停止起草" },
};
// For a fate from a newer server that this file, still in the browser's cache, does not know.
const UNKNOWN = { colour: "#888888", ink: "#000", author: null, en: "other", zh: "其他" };

export function fateOf(event) {
  return event.fate === "given" ? GIVEN : (FATES[event.fate] ?? UNKNOWN);
}
