// A player in a page without a screen, run by node: `see` is what the browser tells it of its film, newest last.
let see;
const none = () => {};
Object.assign(globalThis, {
  document: { addEventListener: none, hidden: false },
  window: { matchMedia: () => ({ matches: true, addEventListener: none }) },
  IntersectionObserver: class { constructor(tell) { see = (...all) => tell(all.map((isIntersecting) => ({ isIntersecting }))); } observe() {} },
  createImageBitmap: async () => ({ close: none }),
});
const { Player } = await import("./strip_player.js");
const { bitmapOf, fetchSprite } = await import("./sprites.js");
const canvas = { parentElement: {}, classList: { add: none, remove: none }, dataset: {}, removeAttribute: none, getContext: () => ({ drawImage: none }) };
const player = new Player(canvas, {}, { thumb: () => canvas, going: () => false, live: () => false, changed: none });
const run = (name, count) => Array.from({ length: count }, (_, i) => ({ run: name, number: i + 1, sprite: { frames: 12, width: 4, height: 4 } }));
const there = (events) => events.filter(bitmapOf).length;
const settled = () => new Promise((resolve) => setTimeout(resolve, 50));
const loadAll = (events) => Promise.all(events.map((event) => new Promise((shown) => fetchSprite(event, shown, new AbortController().signal))));
