// The page's own values. What comes from the server has the server's names.

interface Sprite {
  frames: number;
  width: number;
  height: number;
}

interface BlockEvent {
  run: string;
  node: string;
  workflow: string | null;
  prompt?: string;
  until?: number;
  number: number;
  of: number;
  outcome: string;
  score: number | null;
  threshold?: number | null;
  worst_frame: number | null;
  unscored?: number;
  seconds: number;
  decode: number;
  take: number;
  reused: boolean;
  drift?: number | null;
  sprite?: Sprite;
  words?: string;
  join?: string;
  edition?: number;
  recorded?: Omit<LiveRecording, "blocks">; // of a live session, where it is other than before
}

interface Signature {
  all: string;
  rest: string;
  router: string;
  tau: number | null;
  wired: string;
  positive: string;
  prompts: [number, string][];
  strengths: [number, string][];
  shots: string;
}

/** Key, first block and number of blocks of a shot that begins afresh, with those that go on from it. */
type RunPlace = [string, number, number];

/** The event `sdvg.run`. */
interface RunInfo {
  run: string;
  node: string;
  workflow: string | null;
  of: number;
  directions?: string;
  takes?: string;
  fps?: number;
  until?: number;
  kept?: string;
  note?: string;
  prompt?: string;
  before?: number;
  block_length?: number;
  shots?: RunPlace[];
  signature?: Signature | null;
  live?: boolean;
  state?: LiveState | null;
}

/**
 * The event `sdvg.live`: how a live session stands. `why`: it is held, `asked` or `unseen`. `upcoming`: the block that a word counts from.
 * `encoding`: seconds of the last prompt. `words`: the newest prompt that was asked for, as it was taken.
 */
interface LiveState {
  turn: number;
  held: boolean;
  why: string;
  upcoming: number;
  encoding: number;
  words: string;
}

/** A live session as the values of an ordinary run; `text`: the lines of its prompt. */
interface LiveRecording {
  text: string;
  seed: number;
  takes: string;
  blocks: number;
}

/** The answer to something that is asked of a live session: from which block it counts, and the prompt as it was taken. */
type Steered = { block: number; text: string } | { error: string; status: number };

/**
 * The step to a shot from what is shown before it, in levels of 255. `usual_...`: the median step within the two. `from_first`: how far
 * its colours are from the first shot's.
 */
interface Join {
  brightness: number;
  contrast: number;
  usual_brightness: number;
  usual_contrast: number;
  from_first: number;
}

/** The event `sdvg.done`. `digests`: for each block, of its shot up to there. `joins`: by the number of a shot's first block. */
interface RunDone {
  blocks: number;
  of: number;
  stopped: boolean;
  failed?: boolean;
  seconds?: number;
  speed_up: number | null;
  digests?: string[];
  clip_frames?: number;
  joins?: Record<string, Join>;
  why?: string;
  recording?: LiveRecording | null;
  dropped?: LiveRecording[];
}

/**
 * A run as far as it is known. `ended`: without a word of how. `stopping`: the server was asked to stop it. `heard`: its events come to
 * this page.
 */
interface Run {
  info: RunInfo;
  run: string;
  of: number;
  directions: string;
  takes: string;
  events: BlockEvent[];
  done: RunDone | null;
  ended: boolean;
  stopping: boolean;
  heard: boolean;
}

/** What the server says of the next run beside one that is shown: a letter per block, and the blocks that are old. */
interface Forecast {
  blocks: string;
  old: number[];
  seconds: number | null;
}

/**
 * What a video and its shots start from. `clipSeconds`: how long the clip is that it continues; null if there is none, or nobody knows
 * yet. `afresh`: later blocks at which a shot begins with nothing before it. `blockLength`: latent frames of a block, as its run had them.
 */
interface VideoStart {
  clip: boolean;
  clipSeconds: number | null;
  image: boolean;
  restyle: boolean;
  unknown: boolean;
  afresh: number[];
  blockLength: number;
}

/** Blocks of the video that follow on each other. */
interface Stretch {
  from: number;
  to: number;
}

/** So many first blocks of a shot that stay, and the digest of their latents. */
interface ShotLock {
  key: string;
  blocks: number;
  digest: string;
}

/** What edits of a board leave alone: so many blocks of a clip before the video's, and the locked blocks of shots. */
interface Held {
  before: number;
  locks: { key: string; blocks: number }[];
}

/** What is asked of the next run. `lock`: as text. */
interface Inputs {
  blocks: number;
  directions: string;
  takes: string;
  lock: string;
  until: number;
  aspect: number;
  start: VideoStart;
  shots: RunPlace[];
}

/** What a run is, or was, asked for. */
interface Asked {
  signature: Signature | null | undefined;
  directions: string;
  takes: string;
  kept: string;
  shots: RunPlace[];
}

/** A block as its square shows it. `from`: the second of the video at which it begins; `isAdded`: after a clip whose length nobody knows. */
interface Square {
  number: number;
  of: number;
  event?: BlockEvent;
  join?: Join;
  letter: string;
  take: number;
  again: boolean;
  uncertain: boolean;
  old: boolean;
  kept: boolean;
  usable: boolean;
  from: number;
  isAdded: boolean;
}

interface Outcome {
  name: string;
  colour: string;
  ink: string;
  author: string | null;
}

interface Mark {
  letter: string;
  take: number;
}

/** What a shot that begins afresh is named, and the key of what it begins with the last frame of; empty for nothing. */
interface Fresh {
  key: string;
  from: string;
}

/** A clip that is shown as it is. `span`: seconds of it, such as "1.5-4.0"; empty for all. */
interface Footage {
  name: string;
  span: string;
}

/** `clips`: shown before it. `fresh`: null if it goes on, and for the first one without a key. A continued clip's block has no mark. */
interface Shot {
  clips: Footage[];
  cut: boolean;
  fresh: Fresh | null;
  strength: string;
  prompt: string;
  marks: (Mark | null)[];
}

/** A line of a prompt about a block, with those after it that belong to it. Of footage, or else of a shot. */
interface PromptPart {
  from: number;
  cut: boolean;
  fresh: Fresh | null;
  strength: string;
  clip: Footage | null;
  lines: string[];
}

/** `clips`: shown after the last shot. `later`: lines that no block reaches. */
interface ShotBoard {
  shots: Shot[];
  clips: Footage[];
  later: PromptPart[];
}

interface BoardValues {
  text: string;
  blocks: number;
  directions: string;
  takes: string;
}

interface Take {
  key: number;
  event?: BlockEvent;
  label: string;
  old: boolean;
  chosen: boolean;
  act: () => void;
}

interface MenuItem {
  text: string;
  key?: string;
  checked?: boolean;
  act: () => void;
}

interface FilmState {
  playing: boolean;
  number: number | null;
  at: number;
  all: number;
}

interface NodeOutput {
  sdvg_shown?: string[];
  sdvg_route?: BlockEvent[];
  sdvg_run?: (RunInfo & RunDone)[];
  sdvg_report?: string[];
}

interface OutputRun {
  id: string;
  prompt: string;
}

interface WidgetSource {
  node: GraphNode;
  widget: Widget;
}

type Paint = (canvas: HTMLCanvasElement, event: BlockEvent, frame: number) => void;
