// Reads and writes the lines of a prompt that say what begins at a block, such as "5: a storm" or "7 strength 0.6: a lake". Any
// other line belongs to the prompt before it. The server's reading is sdvg_core/text/prompts.py.
const LINE = /^[ \t]*([0-9]{1,6})((?:[ \t]+[^:]*?)?)[ \t]*:(?![0-9])[ \t]*(.*)$/;
const HEAD = /^(|[ \t]+cut|[ \t]+strength[ \t]+\S+)$/; // between number and colon; anything else is no line

/** The parts of a prompt: the block each begins at (1: the prompt itself), what stands before its colon, and its text. */
function parts(text) {
  const found = [{ from: 1, head: "", lines: [] }];
  for (const line of text.split(/\r\n|\r|\n/)) {
    const [, number, head, said] = line.match(LINE) ?? [];
    if (number === undefined || !HEAD.test(head)) found.at(-1).lines.push(line);
    else found.push({ from: Number(number), head, lines: [said] });
  }
  return found;
}

/** The prompt that the line of a block has; empty if there is none. */
export function promptFrom(text, number) {
  return parts(text).slice(1).find(({ from }) => from === number)?.lines.join("\n").trim() ?? "";
}

/** The text with another prompt from a block on; an empty prompt takes the line away, but not what else it says. */
export function withPromptFrom(text, number, prompt) {
  const [own, ...others] = parts(text);
  const old = others.find(({ from }) => from === number);
  const rest = others.filter((part) => part !== old);
  const head = old?.head ?? "";
  if (prompt.trim() || head) rest.push({ from: number, head, lines: [prompt.trim()] });
  rest.sort((a, b) => a.from - b.from);
  const written = rest.map(({ from, head: of, lines }) => `${from}${of}: ${lines.join("\n").trimEnd()}`.trimEnd());
  return [own.lines.join("\n").trimEnd(), ...written].join("\n");
}
