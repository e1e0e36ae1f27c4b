// What the page says, from locales/*/main.json, which ComfyUI serves; read once, before any node is made. Not vue-i18n, which reads
// {, }, | and @ as it likes and has no way to ask for a key of another pack.
import { outcomeOf } from "./blocks.js";
import { fetchWords, language } from "./frontend.js";

/** @returns {Promise<Translations>} */
async function readWords() {
  try {
    return (await fetchWords()) ?? {};
  } catch (error) {
    console.warn("SDVG", error);
    return {};
  }
}

const languages = await readWords();

/**
 * @param {string} spoken
 * @param {string} key
 */
function find(spoken, key) {
  /** @type {any} */
  let words = languages[spoken]?.sdvg;
  for (const name of key.split(".")) words = words?.[name];
  return words;
}

/**
 * A text by its key, with its `{names}` filled in from `values`; where there are one and many of it, by `count`. English where the
 * page's language lacks it, and the key itself where the server has none.
 * @param {string} key
 * @param {Record<string, string | number>} [values]
 * @returns {string}
 */
export function text(key, values = {}) {
  const known = find(language(), key) ?? find("en", key) ?? key;
  const pattern = known[values.count === 1 ? "one" : "many"] ?? known;
  return pattern.replaceAll(
    /\{(\w+)\}/g,
    (/** @type {string} */ _, /** @type {string} */ name) => values[name] ?? "",
  );
}

/**
 * @param {number} from
 * @param {number} to
 */
export function blocksText(from, to) {
  return text("blocks", { count: to - from + 1, from, to });
}

/**
 * Several stretches of blocks.
 * @param {Stretch[]} stretches
 */
export function stretchesText(stretches) {
  return stretches.map(({ from, to }) => blocksText(from, to)).join(text("comma"));
}

/**
 * How a block came about.
 * @param {BlockEvent} event
 */
export function outcomeText(event) {
  return text(`outcome.${outcomeOf(event).name}`);
}
