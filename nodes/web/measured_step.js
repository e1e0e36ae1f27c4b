// A step that can be undone and has what Nodes 2.0 measures of it later.
import { allNodes, asOneStep, drawsNodes, openWorkflow } from "./frontend.js";

/**
 * Change the graph by one step that can be undone, with the heights that Nodes 2.0 measures of it some frames later: alone they would be a step of their own at the next click.
 * @param {() => void} change
 */
export function asOneStepWithHeights(change) {
  const tracker = openWorkflow()?.changeTracker;
  if (!drawsNodes() || !tracker) {
    asOneStep(change);
    return;
  }
  tracker.beforeChange(); // not the canvas: that speaks to whichever workflow is open then
  try {
    change();
  } finally {
    onceMeasured(() => tracker.afterChange());
  }
}

const STEADY = 3; // drawn frames in which no node's size changes
const MOST_FRAMES = 60;

/**
 * Call `act` once the nodes keep their sizes, but before whatever a key or a press does, and before nobody sees the page, when no frame is drawn.
 * @param {() => void} act
 */
function onceMeasured(act) {
  const ends = ["keydown", "pointerdown", "visibilitychange"];
  let isOver = false;
  const end = () => {
    if (isOver) return;
    isOver = true;
    for (const name of ends) window.removeEventListener(name, end, true);
    act();
  };
  let last = "";
  let since = 0; // frames
  const look = (frames = 0) => {
    const now = JSON.stringify([...allNodes()].map(({ size }) => [...size]));
    since = now === last ? since + 1 : 0;
    last = now;
    if (since >= STEADY || frames >= MOST_FRAMES) end();
    else requestAnimationFrame(() => look(frames + 1));
  };
  for (const name of ends) window.addEventListener(name, end, true);
  if (document.hidden) end();
  else look();
}
