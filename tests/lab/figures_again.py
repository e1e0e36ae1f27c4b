"""Figures worked out a second time from the rows of docs/rows, by other code and with other draws than the page's.

Means and counts agree to the last digit, the ends of intervals within WITHIN.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from decimal import Decimal

import numpy as np

from lab.research.tables import PAGE, ROWS

WITHIN = 0.06
DRAWS = 16_000
TARGET, FAST, DRAFT = "target-only", "anchor-only", "draft-only"
BALANCED = "at-3@2+5"
FIRST_TWO = {"first two": "handover-2@2"}
PRESETS = {TARGET: TARGET, "careful": "careful", "balanced": BALANCED, **FIRST_TWO, "fast": FAST, DRAFT: DRAFT}
LAST, PLACED = "last_block_quality", "last_block_at_its_place"
TEXT = PAGE.read_text(encoding="utf-8")
SENTENCES = " ".join(" ".join(line for line in TEXT.splitlines() if not line.startswith("|")).split())
"""The page without its tables."""


# --- rows


class Measured:
    """Figures per prompt, means over seeds, of the prompts and seeds that have all of some ways."""

    def __init__(self, *files, ways=(), first=None):
        found = defaultdict(lambda: defaultdict(dict))
        for file in files:
            for row in csv.DictReader((ROWS / file).read_text(encoding="utf-8").splitlines()):
                route = row.get("route", "")
                row["kept"] = str(route.count("a"))
                row["target blocks"] = str(sum(letter in "FtrO" for letter in route))
                if not ways or row["way"] in ways:
                    found[row["seed"]][int(row["prompt"])][row["way"]] = row
        if first:
            found = {seed: {p: made for p, made in of.items() if p < first} for seed, of in found.items()}
        self.ways = sorted({way for seed in found.values() for prompt in seed.values() for way in prompt})
        have = {seed: {p for p, made in of.items() if len(made) == len(self.ways)} for seed, of in found.items()}
        self.prompts = sorted(next(iter(have.values())))
        self.rows = [found[seed] for seed, prompts in have.items() if prompts >= set(self.prompts)]
        self.known = {}
        self.lots = np.random.default_rng(77).integers(len(self.prompts), size=(DRAWS, len(self.prompts)))

    def of(self, way, column="quality"):
        """A figure of each prompt; NaN where no seed has it."""
        made = [[row[prompt][way][column] for row in self.rows] for prompt in self.prompts]
        numbers = [[float(text) for text in of if text] for of in made]
        return np.array([np.mean(of) if of else np.nan for of in numbers])

    def drawn(self, values):
        """The mean, and those of the lots."""
        return np.concatenate([[np.nanmean(values)], np.nanmean(values[self.lots], axis=1)])

    def means(self, way, column):
        if (way, column) not in self.known:
            self.known[way, column] = self.drawn(self.of(way, column))
        return self.known[way, column]

    def minus(self, way, other):
        """By how much a way is above another."""
        return self.drawn(self.of(way) - self.of(other))

    def curve(self, ways, way, against="cost", column="quality"):
        """By how much a way is above others at its own cost, and in each lot; None if it is beyond their ends."""
        x, y = (np.stack([self.means(one, what) for one in ways]) for what in (against, column))
        order = np.argsort(x, axis=0)
        x, y = (np.take_along_axis(of, order, axis=0) for of in (x, y))
        cost, quality = (self.means(way, what) for what in (against, column))
        if not x[0, 0] <= cost[0] <= x[-1, 0]:
            return None
        return quality - [np.interp(cost[n], x[:, n], y[:, n]) for n in range(len(cost))]


# --- cells


def numbers_in(cell):
    return [Decimal(text) for text in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


def same_figure(shown, value, percent=False):
    """Whether a figure is this one to its last digit; a tie may go either way."""
    scale = 100 if percent else 1
    digits = -shown.as_tuple().exponent
    return abs(float(shown) - value * scale) <= 0.5 * 10**-digits + 1e-9


def check(cell, draws, percent=False, within=WITHIN, bold=False):
    """Assert that a cell shows the figure and interval of these draws; `bold`: if that leaves out zero."""
    if draws is None:
        assert cell == "-"
        return
    shown = numbers_in(cell)
    assert same_figure(shown[0], draws[0], percent), (cell, draws[0])
    if len(shown) == 1:
        return
    ends = np.nanquantile(draws[1:], (0.025, 0.975))
    assert np.allclose([float(end) for end in shown[1:]], ends, atol=within), (cell, ends)
    if shown[1] * shown[2]:  # an end that is shown as 0 may lie on either side
        assert cell.startswith("**") == (bold and shown[1] * shown[2] > 0)


def within_of(column):
    """How far the end of an interval may be off."""
    return {"to_draft": 2 * WITHIN}.get(column, WITHIN / 3 if "place" in column else WITHIN)


def table(name):
    """The cells of a printed table, by its head."""
    lines = TEXT.split(f"<!-- table {name} -->\n")[1].split("\n\n")[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return head, rows
