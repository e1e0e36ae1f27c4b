// What the menu of a shot's card offers, each with what it makes again.
import {
  addClip,
  beginFrom,
  cloneShot,
  insertShot,
  moveShot,
  removeShot,
  retakeShot,
} from "./shot_edits.js";
import { headShot, keysBefore, startsAfresh } from "./shots.js";
import { originText } from "./shot_sentences.js";
import { text } from "./words.js";

const FIELD = "textarea"; // of a card, where its words are typed

/** @typedef {import("./strip_board.js").Board} Board */

/**
 * The items of a shot's menu, in groups.
 * @param {Board} view
 * @param {number} i
 * @returns {MenuItem[][]}
 */
export function shotItems(view, i) {
  const { first } = view.cards[i];
  const release = view.firstFree(i) > 0 ? view.acts.release(first) : null;
  const groups = [
    release ? [release] : [],
    takeItems(view, i),
    originItems(view, i),
    runItems(view, i),
  ];
  return [...groups, rowItems(view, i)].filter((items) => items.length);
}

/**
 * An edit that may be made, and the shot that has the focus then; none if it may not.
 * @param {Board} view
 * @param {string} act
 * @param {ShotBoard} edited
 * @param {number} focus
 * @param {{ part?: string, key?: string }} [options]
 * @returns {MenuItem[]}
 */
function editItem(view, act, edited, focus, { part, key } = {}) {
  const board = view.allow(edited);
  if (!board) return [];
  const name = text("does", { act, cost: view.cost(board) });
  return [{ text: name, key, act: () => view.edit(board, focus, part) }];
}

/**
 * Moving, adding and removing.
 * @param {Board} view
 * @param {number} i
 */
function rowItems(view, i) {
  const { board, key } = view;
  const { length } = board.shots;
  const before = startsAfresh(board.shots, i, i);
  const after = startsAfresh(board.shots, i, i + 1);
  const earlier = i > 0 ? moveShot(board, i, i - 1, key) : null;
  const later = i + 1 < length ? moveShot(board, i, i + 1, key) : null;
  const words = { part: FIELD };
  return [
    ...(earlier
      ? editItem(view, text("earlierShot"), earlier, i - 1, { key: "Alt+ArrowLeft" })
      : []),
    ...(later ? editItem(view, text("laterShot"), later, i + 1, { key: "Alt+ArrowRight" }) : []),
    ...editItem(
      view,
      text(before ? "addFreshBefore" : "addBefore"),
      insertShot(board, i, before ? key : ""),
      i,
      words,
    ),
    ...editItem(
      view,
      text(after ? "addFreshAfter" : "addAfter"),
      insertShot(board, i + 1, after ? key : ""),
      i + 1,
      words,
    ),
    ...editItem(view, text("cloneShot"), cloneShot(board, i, key), i + 1),
    ...editItem(view, text("addClipBefore"), addClip(board, i), i),
    ...(i + 1 === length ? editItem(view, text("addClipAfter"), addClip(board, length), i) : []),
    ...(length > 1
      ? editItem(view, text("removeShot"), removeShot(board, i), Math.max(0, i - 1))
      : []),
  ];
}

/**
 * The takes of a shot to choose from, where there are several.
 * @param {Board} view
 * @param {number} i
 * @returns {MenuItem[]}
 */
function takeItems(view, i) {
  const { asked, known } = view.takesOf(i);
  const first = view.firstFree(i);
  const takes = [...new Set([1, ...known, asked])].sort((a, b) => a - b);
  if (takes.length < 2 || first >= view.board.shots[i].marks.length) return [];
  return takes.map((take) => ({
    text: text("take", { take }),
    checked: take === asked,
    act: () => view.edit(retakeShot(view.board, i, first, take), i),
  }));
}

/**
 * What a shot that begins afresh can begin with: nothing, or the last frame of something before it.
 * @param {Board} view
 * @param {number} i
 * @returns {MenuItem[]}
 */
function originItems(view, i) {
  const { shots } = view.board;
  const { fresh } = shots[i];
  const keys = keysBefore(shots, i);
  if (!fresh || !keys.length) return [];
  return ["", ...keys].flatMap((key) => {
    const act = key ? originText(shots, key).long : text("beginAlone");
    const checked = key === fresh.from;
    const board = view.allow(beginFrom(view.board, i, key));
    if (!board) return [];
    const name = checked ? act : text("does", { act, cost: view.cost(board) });
    return [{ text: name, checked, act: () => view.acts.write(board) }];
  });
}

/**
 * Making a shot alone, with those of its run that it goes on from.
 * @param {Board} view
 * @param {number} i
 * @returns {MenuItem[]}
 */
function runItems(view, i) {
  const { shots } = view.board;
  const { last } = view.cards[i];
  const isFilm = shots.every(({ fresh }, at) => at === 0 || !fresh);
  if (isFilm || view.isFixed(i)) return [];
  const from = headShot(shots, i) + 1;
  const name = text("makeShot", { count: i + 2 - from, from, to: i + 1 });
  return [{ text: name, act: () => view.acts.make(last, i + 1) }];
}
