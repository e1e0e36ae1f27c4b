// The router's policies in words: five in front, the others behind them, each with what it does. Values stay as they are saved.
import { app } from "../../scripts/app.js";
import { locale } from "./common.js";

const FRONT = ["fast", "balanced", "careful", "reward", "budget"];
const WORDS = {
  en: {
    fast: "Fast preview",
    balanced: "Balanced",
    careful: "Careful",
    reward: "Reward gate (paper)",
    budget: "Budget",
    more: (name, text) => `${name} (more): ${text}`,
    first: ["First blocks", "the target makes the first blocks, as many as you say"],
    "anchor-only": ["First block", "the target makes the first block, every draft after it is kept"],
    relative: ["Relative gate", "a draft is kept if it scores hardly lower than the frame before it"],
    random: ["Chance", "a coin decides which drafts are kept"],
    "always-draft": ["Drafter only", "the small model makes every block"],
    "always-target": ["Target only", "the large model makes every block"],
    scripted: ["Script", "you say who makes each block, in letters"],
    learned: ["Learned", "prompts that gain more from the target get more first blocks"],
  },
  zh: {
    fast: "快速预览",
    balanced: "均衡",
    careful: "细致",
    reward: "奖励门控（论文）",
    budget: "预算",
    more: (name, text) => `${name}（更多）：${text}`,
    first: ["开头几块", "开头几块由目标模型生成，块数由你定"],
    "anchor-only": ["仅首块", "首块由目标模型生成，其后的草稿全部保留"],
    relative: ["相对门控", "草稿得分不比前一帧低太多就保留"],
    random: ["随机", "随机决定保留哪些草稿"],
    "always-draft": ["仅草稿模型", "每块都由小模型生成"],
    "always-target": ["仅目标模型", "每块都由大模型生成"],
    scripted: ["脚本", "用字母指定每块由谁生成"],
    learned: ["学得的路由", "从目标模型获益多的提示词，分到更多开头的块"],
  },
};

function label(value) {
  const words = WORDS[locale()];
  if (!words[value] || value === "more") return String(value ?? "");
  return FRONT.includes(value) ? words[value] : words.more(...words[value]);
}

app.registerExtension({
  name: "sdvg.policy_words",
  nodeCreated(node) {
    if (node.comfyClass !== "SDVGQualityRouter") return;
    const widget = node.widgets?.find(({ name }) => name === "policy");
    if (!Array.isArray(widget?.options?.values)) return;
    const { values } = widget.options;
    widget.options.values = [...FRONT.filter((one) => values.includes(one)), ...values.filter((one) => !FRONT.includes(one))];
    widget.options.getOptionLabel = label;
  },
});
