// Sorts and filters the videos, plays their pictures, and says what a square stands for. Everything is in the page.
"use strict";

const FALLING = { worst: false, share: true, seconds: true, number: false };
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

function all(selector, within = document) {
  return [...within.querySelectorAll(selector)];
}

/** Order elements by a number, or by text; what has neither comes last either way. */
function sorted(elements, valueOf, falling) {
  const known = elements.map((element, place) => ({ element, place, value: valueOf(element) }));
  known.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.place - b.place;
    const order = typeof a.value === typeof b.value ? (a.value > b.value) - (a.value < b.value) : (typeof a.value === "string") * 2 - 1;
    return (falling ? -order : order) || a.place - b.place;
  });
  return known.map(({ element }) => element);
}

function numberOf(text) {
  return text === undefined || text === "" ? null : Number(text);
}

// --- videos -----------------------------------------------------------------------------------------------------

function sortCards(button) {
  const key = button.dataset.sort;
  const again = button.getAttribute("aria-pressed") === "true";
  const falling = again ? !button.classList.contains("falling") : FALLING[key];
  for (const other of all("[data-sort]")) {
    other.setAttribute("aria-pressed", String(other === button));
    other.classList.toggle("falling", other === button && falling);
  }
  const gallery = document.querySelector(".gallery");
  const cards = sorted([...gallery.children], (card) => numberOf(card.dataset.number), false);
  gallery.append(...sorted(cards, (card) => numberOf(card.dataset[key]), falling));
}

function filter(text) {
  const wanted = text.trim().toLowerCase();
  for (const card of all(".card")) card.hidden = !card.dataset.find.toLowerCase().includes(wanted);
  for (const row of all("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}

/** A video's pictures: shows one of them, or plays them, and marks the square of the block that is seen. */
function film(card) {
  const link = card.querySelector("a.film");
  if (!link) return null;
  const image = link.querySelector("image");
  const blocks = link.dataset.blocks.split(" ").map(Number);
  const squares = all(".route button", card);
  let timer = null;
  let place = 0;
  const show = (next) => {
    place = next;
    image.setAttribute("x", String(-place * Number(link.dataset.width)));
    squares.forEach((square, block) => square.classList.toggle("now", block === blocks[place]));
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    show(0);
    for (const square of squares) square.classList.remove("now");
  };
  const play = () => {
    if (timer || STILL.matches) return;
    timer = setInterval(() => show((place + 1) % blocks.length), Number(link.dataset.pause));
  };
  for (const begin of ["pointerenter", "focus"]) link.addEventListener(begin, play);
  for (const end of ["pointerleave", "blur"]) link.addEventListener(end, stop);
  return { stop, showBlock: (block) => blocks.includes(block) && show(blocks.indexOf(block)) };
}

function route(card, shown) {
  const squares = all(".route button", card);
  const said = card.querySelector(".said");
  squares.forEach((square, block) => {
    const look = () => {
      said.textContent = square.title;
      shown?.showBlock(block);
    };
    square.addEventListener("pointerenter", look);
    square.addEventListener("focus", look);
    for (const end of ["pointerleave", "blur"]) square.addEventListener(end, () => shown?.stop());
    square.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: block - 1, ArrowRight: block + 1, Home: 0, End: squares.length - 1 }[event.key];
      if (to === undefined || !squares[to]) return;
      event.preventDefault();
      square.tabIndex = -1;
      squares[to].tabIndex = 0;
      squares[to].focus();
    });
  });
}

// --- tables -----------------------------------------------------------------------------------------------------

function sortTable(header) {
  const body = header.closest("table").tBodies[0];
  const falling = header.getAttribute("aria-sort") === "ascending";
  for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const valueOf = (row) => {
    const cell = row.cells[header.cellIndex];
    return numberOf(cell.dataset.value) ?? (cell.textContent === "-" ? null : cell.textContent);
  };
  body.append(...sorted([...body.rows], valueOf, falling));
}

for (const card of all(".card")) route(card, film(card));
for (const button of all("[data-sort]")) button.addEventListener("click", () => sortCards(button));
for (const header of all(".sortable th")) header.firstElementChild.addEventListener("click", () => sortTable(header));
for (const controls of all(".controls")) {
  controls.hidden = false;
  controls.querySelector("input").addEventListener("input", (event) => filter(event.target.value));
}
