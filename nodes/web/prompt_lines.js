// Reads and writes the lines of a prompt that say what begins at a block, such as "5: a storm" or "7 strength 0.6: a lake". Any
// other line belongs to the prompt before it. The server's reading is sdvg_core/text/prompts.py.
const LINE = /^[ \t]*([0-9]{1,6})((?:[ \t]+[^:]*?)?)[ \t]*:(?![0-9])[ \t]*(.*)$/;
const HEAD = /^([ \t]+cut)?([ \t]+strength[ \t]+\S+)?$/; // between number and colon; anything else is no line

/**
 * The number, what stands before the colon, and the text of a line about a block; null for any other line.
 * @param {string} line
 */
function matchLine(line) {
  const [, number, spaced = "", prompt = ""] = line.match(LINE) ?? [];
  const head = spaced.trimEnd();
  return number !== undefined && HEAD.test(head) ? { from: Number(number), head, prompt } : null;
}

/**
 * Whether a line is about a block.
 * @param {string} line
 */
export function namesBlock(line) {
  return matchLine(line) !== null;
}

/**
 * Whether such a line begins a new scene, and the strength that it gives, as they stand before its colon.
 * @param {string} head
 */
export function headParts(head) {
  const [, cut = "", strength = ""] = head.match(HEAD) ?? [];
  return { cut: cut !== "", strength };
}

/**
 * The parts of a prompt: the block each begins at (1: the prompt itself), what stands before its colon, and its lines.
 * @param {string} text
 * @returns {PromptPart[]}
 */
export function parts(text) {
  const all = [{ from: 1, head: "", lines: /** @type {string[]} */ ([]) }];
  for (const line of text.split(/\r\n|\r|\n/)) {
    const match = matchLine(line);
    if (match) all.push({ from: match.from, head: match.head, lines: [match.prompt] });
    else all[all.length - 1].lines.push(line);
  }
  return all;
}

/**
 * A part as it is written.
 * @param {PromptPart} part
 */
export function lineOf({ from, head, lines }) {
  return `${from}${head}: ${lines.join("\n").trimEnd()}`.trimEnd();
}
