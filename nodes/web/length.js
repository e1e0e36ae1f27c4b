// How long a video of some blocks is. A block has three latent frames, as with all published pairs; one is four frames of the
// video, or one at the beginning of a clip.
export const RATE = 16; // frames per second, of Wan 2.1

/** Frames that the blocks show; if they go on from a clip, those that they add to it. */
export function framesOf(blocks, { clip = false, image = false } = {}) {
  if (clip) return 12 * blocks;
  return image ? 12 * blocks + 1 : 12 * blocks - 3;
}

/** `frames` as words: `105 frames, 6.6 s`. */
export function lengthIn(words, frames, clip) {
  return (clip ? "+" : "") + words.frames(frames, (frames / RATE).toFixed(1));
}
