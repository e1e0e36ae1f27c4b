// How high a node is as a part of its strip opens and closes, on ComfyUI's canvas; Nodes 2.0 measures by itself.

/**
 * `height`: of the node, `least`: that it needs once the part is `open` or closed, `usual`: of the part, `grown`: by how much the node
 * grew as the part was opened, undefined if it was opened in Nodes 2.0 or saved so. Returns the node's height and what it has grown.
 */
export function roomFor({ height, least, usual, grown, open }) {
  if (open) return { height: Math.max(height, least), grown: least > height ? least - height : usual };
  return { height: Math.max(height - (grown ?? usual), least), grown: undefined };
}
