"""Every figure of docs/study.md that has rows, worked out from these a second time, with other draws.

Means and counts agree to the last digit, the ends of intervals within WITHIN.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from decimal import Decimal
from itertools import product

import numpy as np
import pytest

from lab.research.tables import CHOOSING, PAGE, ROWS, named_in, printed
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import STRENGTHS

WITHIN = 0.06
DRAWS = 16_000
TARGET, FAST, DRAFT = "target-only", "anchor-only", "draft-only"
BALANCED = "at-3@2+5"
TEXT = PAGE.read_text(encoding="utf-8")
SENTENCES = " ".join(TEXT.split())


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


def table(name):
    """The cells of a printed table, by its head."""
    lines = TEXT.split(f"<!-- table {name} -->\n")[1].split("\n\n")[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return head, rows


def test_page_has_its_tables_as_printed():
    """Catches: a table edited by hand, rows added without a print."""
    assert named_in(TEXT)
    assert printed(TEXT, ROWS) == TEXT


def test_new_table_leaves_what_follows_it():
    """Catches: a paragraph taken for the table that is not there yet."""
    text = printed("<!-- table places -->\n\n- What follows.\n", ROWS)
    assert text.endswith(" |\n\n- What follows.\n")
    assert printed(text, ROWS) == text


def test_unknown_table_is_refused():
    with pytest.raises(BadInput, match="asks for the table other"):
        printed("<!-- table other -->\n\n", ROWS)


def test_ways_agree_with_their_rows():
    """Catches: a cost of other weights, a curve with another end, prompts drawn apart for two ways of a pair."""
    made = Measured("ways.csv")
    _, rows = table("ways")
    firsts = [TARGET, FAST, *(way for way in made.ways if way.startswith("first@"))]
    chance = [TARGET, FAST, *(way for way in made.ways if way.startswith("random@"))]
    assert len(rows) == 22
    for name, quality, median, minus, cost, first, random in rows:
        way = name.split(",")[0]
        check(quality, made.drawn(made.of(way)))
        assert same_figure(Decimal(median), np.median(made.of(way)))
        check(minus, None if way == TARGET else made.drawn(made.of(way) - made.of(TARGET)))
        assert same_figure(Decimal(cost), made.of(way, "cost").mean() / made.of(TARGET, "cost").mean())
        check(first, None if way in (*firsts, DRAFT) else made.curve(firsts, way), bold=True)
        check(random, None if way in (*chance, DRAFT) else made.curve(chance, way), bold=True)
    compared = sum(cell != "-" for row in rows for cell in row[5:])
    assert f"Of {compared} comparisons" in SENTENCES


def test_first_seed_says_the_same_but_for_three():
    """Whether an interval leaves out 0, and on which side. Catches: a sentence that nobody worked out."""
    both, first = Measured("ways.csv"), Measured("ways.csv")
    first.rows = first.rows[:1]
    firsts, chance = (
        [TARGET, FAST, *(way for way in both.ways if way.startswith(of))] for of in ("first@", "random@")
    )
    differ = set()
    for (name, *_), (group, curve) in product(table("ways")[1], (("first", firsts), ("chance", chance))):
        way = name.split(",")[0]
        draws = [] if way in (*curve, DRAFT) else [of.curve(curve, way) for of in (both, first)]
        if any(one is not None for one in draws):
            ends = [np.quantile(one[1:], (0.025, 0.975)) for one in draws]
            if len({(low > 0, high < 0) for low, high in ends}) > 1:
                differ.add((way, group))
    assert differ == {("stride@4", "chance"), ("stride-2@4", "first"), ("random@0.6", "first")}
    assert "(`stride@4` against chance, `stride-2@4` and `random@0.6` against first blocks)" in SENTENCES


GATE = "reward-min@-0.7"
LAST, PLACED = "last_block_quality", "last_block_at_its_place"
BELOW_THE_WAYS = {
    "0.17 dB [0.03, 0.31]": ("handover-2@4", "handover-3@4"),
    "-0.08 dB [-0.24, +0.09]": ("drafts-3:anchor-only", FAST),
    "-0.18 [-0.46, +0.12]": (GATE, "by chance"),
    "-0.20 [-0.44, +0.03]": ("reward-min@-1", "by chance"),
    "-0.52 [-0.80, -0.23]": ("hybrid@-0.7", "by chance"),
    "0.13 dB [0.05, 0.21]": ("handover-3@2", "two steps, same cost"),
    "0.32 [0.20, 0.44]": ("handover-3@4", "two steps, same cost"),
    "0.23 dB [0.08, 0.39]": ("handover-3@4", "two steps, same cost", LAST),
    "-0.89 dB [-1.39, -0.38]": (GATE, "chance, same cost", LAST),
    "+0.00 [-0.05, +0.06]": (GATE, "chance, same cost", PLACED),
    "+0.07 [+0.01, +0.13]": (GATE, "first, same cost", PLACED),
    "-0.37 [-0.73, -0.00]": ("hybrid@-0.7", "chance, same cost", LAST),
}
"""What the page says of two ways, or of one and others at its cost or with as many of the target's blocks."""


def test_sentences_agree_with_their_rows():
    """Catches: a sentence of another table's rows, blocks of the target counted with drafts that it kept."""
    made = Measured("ways.csv")
    first, chance = (
        [TARGET, FAST, *(way for way in made.ways if way.startswith(of))] for of in ("first@", "random@")
    )
    others = {
        "by chance": (chance, "target blocks"),
        "chance, same cost": (chance, "cost"),
        "first, same cost": (first, "cost"),
        "two steps, same cost": ([FAST, *(f"handover-2@{count}" for count in (2, 4, 9))], "cost"),
    }
    for words, (way, other, *columns) in BELOW_THE_WAYS.items():
        assert words in SENTENCES
        column = columns[0] if columns else "quality"
        if other in others:
            draws = made.curve(others[other][0], way, others[other][1], column)
        else:
            draws = made.minus(way, other)
        check(words, draws, within=within_of(column))
    for way, kept in ((GATE, "68 %"), ("hybrid@-0.7", "65 %")):
        assert kept in SENTENCES
        assert same_figure(Decimal(kept[:2]), made.of(way, "kept").mean() / 8, percent=True)


FIRST_TWO = {"first two": "handover-2@2"}
PRESETS = {TARGET: TARGET, "careful": "careful", "balanced": BALANCED, **FIRST_TWO, "fast": FAST, DRAFT: DRAFT}
DIFFERENCES = {
    "presets": {
        "0.87 dB [0.73, 1.02]": (BALANCED, FAST, "quality"),
        "1.55 [1.30, 1.81]": ("careful", FAST, "quality"),
        "0.36 dB [0.16, 0.59]": ("careful", BALANCED, "last_block_quality"),
        "0.03 [0.00, 0.06]": ("careful", BALANCED, "last_block_at_its_place"),
    },
    "ways": {
        "+0.10 [-0.06, +0.26]": ("handover-2@4", "handover-3@4", LAST),
        "0.68 dB [0.25, 1.12]": ("stride-2@4", "handover-3@4", LAST),
        "0.87 [0.62, 1.12] below": ("handover-3@4", "stride-2@4", "quality"),
        "+0.02 [-0.04, +0.08]": ("stride-2@4", "handover-3@4", PLACED),
        "0.07 [0.02, 0.13]": ("stride-2@4", "handover-2@2", PLACED),
        "0.23 dB [0.10, 0.36] lower": (GATE, "hybrid@-0.7", "quality"),
        "gate -0.05 [-0.22, +0.13]": (f"drafts-3:{GATE}", GATE, "quality"),
        "-0.10 [-0.21, +0.00]": ("drafts-3:handover-3@2", "handover-3@2", "quality"),
        "-0.05 [-0.22, +0.12]": ("drafts-3:hybrid@-0.7", "hybrid@-0.7", "quality"),
        "*fast* 0.02 [0.00, 0.03]": (FAST, f"drafts-3:{FAST}", "at_its_place"),
        "0.04 [0.00, 0.08] in the last block": ("hybrid@-0.7", "drafts-3:hybrid@-0.7", PLACED),
    },
    "ways+presets": {
        "+0.81 dB [+0.42, +1.20]": ("stride-2@4", BALANCED, LAST),
        "+0.04 [-0.02, +0.09]": ("stride-2@4", BALANCED, PLACED),
        "-0.35 [-0.55, -0.16]": ("stride-2@4", BALANCED, "quality"),
        "+0.25 dB [-0.08, +0.57]": ("stride-3@4", BALANCED, LAST),
        "0.55 [0.36, 0.76] below": (BALANCED, "stride-3@4", "quality"),
    },
    "places": {
        "0.41 dB [0.17, 0.64]": ("at-3@2+9", BALANCED, LAST),
        "0.23 [0.15, 0.31] below": (BALANCED, "at-3@2+9", "quality"),
    },
    "restyled": {
        "`medium` 0.35 dB [0.09, 0.63]": ("target/same-path/1", "target/same-path/medium", "quality"),
        "0.27 [0.13, 0.41] below": ("target/other-path/1", "target/other-path/medium", "quality"),
    },
    "formats": {
        "0.41 dB [0.14, 0.71]": (f"{DRAFT}/bf16", f"{DRAFT}/w4a8", "quality"),
        "0.31 [0.05, 0.58]": (f"{BALANCED}/bf16", f"{BALANCED}/w4a8", "quality"),
    },
    "places-21": {
        "0.35 dB [0.00, 0.78]": (BALANCED, "at-3@5+12", "quality"),
    },
    "control": {
        "0.05 dB [0.00, 0.11]": ("passes-2@2", "handover-2@2", "quality"),
        "0.26 dB [0.01, 0.54]": ("handover-2@9", "passes-2@9", "last_block_quality"),
    },
    "sessions": {
        "1.68 dB [1.44, 1.92]": ("refine-light", DRAFT, "quality"),
        "0.18 dB [0.09, 0.27]": ("refine-strong", "refine-medium", "quality"),
    },
    "memories-21": {
        "0.54 dB [0.12, 1.06]": (f"{BALANCED}/recompute", f"{DRAFT}/recompute", LAST),
        "3.00 [2.08, 3.98]": (f"{TARGET}/recompute", f"{DRAFT}/recompute", LAST),
    },
    "routes-42": {
        "+0.00 dB [-0.25, +0.28]": ("stride@6/recompute", f"{BALANCED}/recompute", "quality"),
        "0.41 dB [0.05, 0.82]": ("stride@6/recompute", f"{BALANCED}/recompute", "late_clearness"),
    },
    "routes-21+memories-21": {
        "0.88 dB [0.38, 1.45]": ("first@4/recompute", f"{DRAFT}/recompute", LAST),
    },
    "routes-42+memories-42": {
        "+0.07 [-0.51, +0.64]": ("first@7/recompute", f"{DRAFT}/recompute", LAST),
        "1.87 dB [1.42, 2.34]": ("first@7/recompute", f"{DRAFT}/recompute", "quality"),
    },
    "memories-42": {
        "+0.11 [-0.44, +0.64]": (f"{BALANCED}/recompute", f"{DRAFT}/recompute", LAST),
        "1.60 [0.64, 2.56]": (f"{TARGET}/recompute", f"{DRAFT}/recompute", LAST),
    },
}
"""What the page says of two ways, by the files of their rows: the words, the ways, the column."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_sentences_on_two_ways_agree_with_their_rows(name):
    """Catches: figures of rows that were fewer, a difference the other way round, a clip for a block."""
    for words, (way, other, column) in DIFFERENCES[name].items():
        made = Measured(*(f"{file}.csv" for file in name.split("+")), ways=[way, other])
        assert words in SENTENCES
        draws = made.drawn(made.of(way, column) - made.of(other, column))
        check(words, draws, within=within_of(column))


def test_shares_of_frames_agree_with_their_rows():
    """Catches: a preset taken for the route that had its name."""
    made = Measured("presets.csv", ways=[*PRESETS.values()])
    placed = [made.means(way, "last_block_at_its_place")[0] for way in (TARGET, FAST, BALANCED, "careful", DRAFT)]
    shown = re.search(
        r"in (\d+) % of the frames by the target, in (\d+) with \*fast\*, (\d+) with \*balanced\*, (\d+) with "
        r"\*careful\*, (\d+) by the drafter",
        SENTENCES,
    )
    assert all(
        same_figure(Decimal(text), value, percent=True) for text, value in zip(shown.groups(), placed, strict=True)
    )


def within_of(column):
    """How far the end of an interval may be off."""
    return {"to_draft": 2 * WITHIN}.get(column, WITHIN / 3 if "place" in column else WITHIN)


def test_sentences_at_one_cost_agree_with_rows():
    """Catches: a gain that is the cost's, a line between other routes, prompts of one file alone."""
    made = Measured("presets.csv", ways=[*PRESETS.values()])
    gains = {
        "+0.14 dB [+0.05, +0.23]": "quality",
        "+0.30 [+0.17, +0.44]": "last_block_quality",
        "+0.03 [+0.01, +0.05]": "last_block_at_its_place",
    }
    for words, column in gains.items():
        assert words in SENTENCES
        draws = made.curve(["handover-2@2", "careful"], BALANCED, column=column)
        check(words, draws, within=within_of(column))
    both = Measured("presets.csv", "ways.csv", ways=[BALANCED, "handover-3@2", "handover-3@4"])
    assert (len(both.prompts), len(both.rows)) == (100, 2)
    assert "-0.06 dB [-0.15, +0.04], 100 of the prompts" in SENTENCES
    three_steps = {
        "-0.06 dB [-0.15, +0.04]": "quality",
        "0.17 dB [0.00, 0.35]": LAST,
        "+0.02 [-0.01, +0.05]": PLACED,
    }
    for words, column in three_steps.items():
        assert words in SENTENCES
        draws = both.curve(["handover-3@2", "handover-3@4"], BALANCED, column=column)
        check(words, draws, within=within_of(column))


def test_lead_that_first_blocks_lose_agrees():
    """Of two lengths of clips of the same prompts. Catches: a lead over another way."""
    leads = []
    for length, first in ((21, "first@4"), (42, "first@7")):
        ways = [f"{first}/recompute", f"{DRAFT}/recompute"]
        made = Measured(f"routes-{length}.csv", f"memories-{length}.csv", ways=ways)
        leads.append(made.of(ways[0], LAST) - made.of(ways[1], LAST))
    assert "0.82 [0.15, 1.54] less" in SENTENCES
    check("0.82 [0.15, 1.54]", made.drawn(leads[0] - leads[1]))


def test_steps_handed_over_and_left_out_agree():
    """At one cost. Catches: a line through whole blocks, prompts of one file alone."""
    left_out = [FAST, *(f"passes-2@{count}" for count in (2, 4, 9))]
    handed_over = {
        "-0.01 [-0.10, +0.07] with two blocks": "handover-3@2",
        "+0.08 [-0.05, +0.21] with four": "handover-3@4",
        "*balanced* -0.05 [-0.20, +0.10]": BALANCED,
    }
    ways = [*left_out, *handed_over.values()]
    made = Measured("ways.csv", "control.csv", "presets.csv", ways=ways)
    for words, way in handed_over.items():
        assert words in SENTENCES
        check(words, made.curve(left_out, way))
    made = Measured("ways.csv", "control.csv")
    handed_over = [FAST, *(f"handover-2@{count}" for count in (2, 4, 9))]
    assert "0.18 dB [0.11, 0.24] and 0.26 [0.15, 0.37] at the same cost" in SENTENCES
    check("0.18 dB [0.11, 0.24]", made.curve(handed_over, "passes-2@2"))
    check("0.26 [0.15, 0.37]", made.curve(handed_over, "passes-2@4"))


def test_share_of_the_gap_agrees_with_its_rows():
    made = Measured("presets.csv", ways=[*PRESETS.values()])
    fast, draft, target = (made.means(way, "last_block_quality") for way in (FAST, DRAFT, TARGET))
    assert "30 % [24, 37] in the last block" in SENTENCES
    check("30 [24, 37]", 100 * (fast - draft) / (target - draft), within=1)


def test_share_of_the_drift_that_is_held_agrees():
    """Catches: a share of each prompt's drift, of which some are near 0."""
    made = Measured("holds-21.csv")
    shares = {"15 % [7, 23] by the drafter": DRAFT, "17 % [9, 24] by *balanced*": BALANCED}
    for words, way in {**shares, "17 % [11, 22] by the target": TARGET}.items():
        assert words in SENTENCES
        free, held = (made.means(f"{way}/{hold}", "late_drift") for hold in ("0", "0.3"))
        check(words, 100 * (1 - held / free), within=1)


def test_sessions_that_show_the_thing_are_counted():
    shown = np.isfinite(Measured("sessions.csv").of(DRAFT, "overlap")).sum()
    assert f"in the {shown} sessions that show it" in SENTENCES


HEADS = {
    "quality, dB": "quality",
    "clip, dB": "quality",
    "last block, dB": "last_block_quality",
    "at its place": "at_its_place",
    "at its place, last block": "last_block_at_its_place",
    "to the draft, dB": "to_draft",
    "thing at the draft's place": "overlap",
    "last 8 blocks, dB": "late_clearness",
    "colour drift": "late_drift",
}
FINISHED = {
    "the session": DRAFT,
    "again, first two": "again",
    **{f"refine, {word}": f"refine-{word}" for word in STRENGTHS},
}
COMPARED = {
    "sessions": ("sessions.csv", FINISHED, None),
    "presets-last": ("presets.csv", PRESETS, None),
    "ways-last": ("ways.csv", {}, None),
    "places": ("places.csv", FIRST_TWO, CHOOSING),
    "places-21": ("places-21.csv", FIRST_TWO, None),
    "places-chosen": ("places.csv", FIRST_TWO, None),
}


@pytest.mark.parametrize("name", sorted({*COMPARED} & {*named_in(TEXT)}))
def test_differences_agree_with_their_rows(name):
    """Catches: a hidden mover's frames counted, prompts without a value paired with others."""
    file, ways, first = COMPARED[name]
    head, rows = table(name)
    made = Measured(file, ways=[ways.get(row[0], row[0]) for row in rows], first=first)
    before = TEXT.split(f"<!-- table {name} -->")[0]
    of = "sessions" if name == "sessions" else "prompts"
    assert before.endswith(f"on {len(made.prompts)} {of}:\n\n")
    against = head[2].removeprefix("minus ")
    for route, *cells in rows:
        check_differences(made, head[1::2], cells, *(ways.get(way, way) for way in (route, against)))


def check_differences(made, columns, cells, way, against):
    """Assert that cells are a way's figures, each with its difference to another way; `columns`: their heads."""
    for column, figure, minus in zip(columns, cells[::2], cells[1::2], strict=True):
        within = within_of(HEADS[column])
        value = made.of(way, HEADS[column])
        check(figure, made.drawn(value))
        difference = None if way == against else made.drawn(value - made.of(against, HEADS[column]))
        check(minus, difference, within=within, bold=True)


LONG_ROUTES = {"drafter": DRAFT, "balanced": BALANCED, "target": TARGET}
VARIANTS = {
    "recomputed": "recompute",
    "window": "window",
    "deep sink": "deep-sink",
    "MemRoPE": "memrope",
    "each its own": "recompute+deep-sink",
    "16 bits": "bf16",
    "int8": "int8",
    "w4a8": "w4a8",
    "w4a8, the drafter int8": "int8+w4a8",
    "VAE": "vae",
    "TAEHV": "taehv",
    "free": "0",
    "held 0.3": "0.3",
}
WITH_VARIANTS = {"memories-21", "memories-42", "formats", "decoders", "holds-21"}


def measured(name, file, ways):
    """The rows of some ways; the page says of how many prompts and seeds they are."""
    made = Measured(file, ways=ways)
    before = TEXT.split(f"<!-- table {name} -->")[0]
    assert before.endswith(f"on {len(made.prompts)} prompts, seeds: {len(made.rows)}:\n\n")
    return made


@pytest.mark.parametrize("name", sorted(WITH_VARIANTS & {*named_in(TEXT)}))
def test_variants_agree_with_their_rows(name):
    """Catches: a difference to another route's first variant."""
    head, rows = table(name)
    made = measured(name, f"{name}.csv", {way_of(row[0], head) for row in rows})
    for line, *cells in rows:
        check_differences(made, head[1::2], cells, way_of(line, head), way_of(line, head, first=True))


def way_of(line, head, *, first=False):
    """The way of a line of variants; `first`: with the variant that the others are compared with."""
    route, variant = line.split(", ", 1)
    return f"{LONG_ROUTES[route]}/{VARIANTS[head[2].removeprefix('minus ') if first else variant]}"


@pytest.mark.parametrize("name", [name for name in named_in(TEXT) if name.startswith("routes")])
def test_long_routes_agree_with_their_rows(name):
    """Catches: a cost of another memory's target, the difference to the stride."""
    head, rows = table(name)
    ways = {row[0]: f"{LONG_ROUTES.get(row[0], row[0])}/recompute" for row in rows}
    made = measured(name, f"{name}.csv", ways.values())
    target = f"{TARGET}/recompute"
    whole = Measured(name.replace("routes", "memories") + ".csv", ways=[target]).of(target, "cost").mean()
    against = head[3].removeprefix("minus ")
    for route, cost, *cells in rows:
        assert same_figure(Decimal(cost), made.of(ways[route], "cost").mean() / whole)
        check_differences(made, head[2::2], cells, ways[route], ways[against])


def test_restyled_agree_with_their_rows():
    """Catches: another path's figures under the prompt's own, a share of the wrong path."""
    made = Measured("restyled.csv")
    assert TEXT.split("<!-- table restyled -->")[0].endswith(f"On {len(made.prompts)} prompts:\n\n")
    _, rows = table("restyled")
    assert [row[0] for row in rows] == ["no clip", "strong", "medium", "light", "0.3", "0.2"]
    for strength, *cells, nearer in rows:
        on_it, elsewhere = (
            f"target/{path}/{strength.replace('no clip', '1')}" for path in ("same-path", "other-path")
        )
        placed = "last_block_at_its_place"
        for way, (quality, at_its_place) in ((on_it, cells[:2]), (elsewhere, cells[2:])):
            check(quality, made.drawn(made.of(way)))
            check(at_its_place, made.drawn(made.of(way, placed)), within=within_of(PLACED))
        nearer_blocks = made.drawn(made.of(elsewhere, "nearer_to_the_clip"))
        assert same_figure(Decimal(nearer.removesuffix(" %")), nearer_blocks[0], percent=True)
        if strength == "light":
            assert "18 % [9, 28] of the blocks" in SENTENCES
            check("18 [9, 28]", 100 * nearer_blocks, within=1)


def test_drafted_restyles_agree_with_their_rows():
    """Catches: figures of the prompt's own path, the strengths exchanged."""
    made = Measured("restyled.csv")
    shown = re.search(
        r"on another path \*fast\* has (\S+) dB with `medium` and (\S+) with `light`, drafts alone (\S+) "
        r"and (\S+)\.",
        SENTENCES,
    )
    ways = product(("fast", "draft"), ("medium", "light"))
    for text, (route, strength) in zip(shown.groups(), ways, strict=True):
        assert same_figure(Decimal(text), made.of(f"{route}/other-path/{strength}").mean())


def test_extended_agree_with_their_rows():
    """Catches: a difference the other way round, frames of another count."""
    made = Measured("extended.csv")
    assert TEXT.split("<!-- table extended -->")[0].endswith(f"On {len(made.prompts)} prompts:\n\n")
    _, rows = table("extended")
    for count, *cells in rows:
        for cell, column in zip(cells, ("quality", "last_block_quality", "last_block_at_its_place"), strict=True):
            gains = made.of(f"given-{count}", column) - made.of(f"whole-{count}", column)
            check(cell, made.drawn(gains), within=within_of(column), bold=True)


SEAMS = {
    "6.2 levels of 255 from frame to frame inside a given mp4": "in-the-clip",
    "9.7 across the seam": "at-the-seam",
    "5.9 across later blocks": "between-blocks",
}


def test_changes_at_seams_agree_with_their_rows():
    made = Measured("seams.csv")
    for words, way in SEAMS.items():
        assert words in SENTENCES
        assert same_figure(numbers_in(words)[0], made.of(way, "change").mean())


FINISHING = {"again": "0.38 *again*", "refine-light": "0.44", "refine-medium": "0.63", "refine-strong": "0.81"}


def test_costs_of_finishing_agree_with_their_rows():
    """Catches: drafts that are there already counted again, a cost of another way."""
    made = Measured("sessions.csv")
    whole = Measured("ways.csv").of(TARGET, "cost").mean()
    assert "0.38 *again*, and 0.44, 0.63 and 0.81 by refining" in SENTENCES
    for way, words in FINISHING.items():
        assert same_figure(Decimal(words[:4]), made.of(way, "cost").mean() / whole)


def test_control_agrees_with_its_rows():
    """Catches: the control's figures under the handover's head, a difference the other way round."""
    made = Measured("control.csv")
    _, rows = table("control")
    assert [row[0] for row in rows] == ["2", "4", "9"]
    for count, *cells, gain, placed in rows:
        ways = (f"handover-2@{count}", f"passes-2@{count}")
        for way, cost, minus in zip(ways, cells[::2], cells[1::2], strict=True):
            assert same_figure(Decimal(cost), made.of(way, "cost").mean() / made.of(TARGET, "cost").mean())
            check(minus, made.minus(way, TARGET), bold=True)
        check(gain, made.minus(*ways), bold=True)
        at_its_place = [made.of(way, "last_block_at_its_place") for way in ways]
        check(placed, made.drawn(at_its_place[0] - at_its_place[1]), within=within_of(PLACED), bold=True)


def test_presets_agree_with_their_rows():
    """Catches: a share of the gap of other ends, a median over videos in place of prompts."""
    made = Measured("presets.csv", ways=[*PRESETS.values()])
    _, rows = table("presets")
    assert [row[0] for row in rows] == [*PRESETS]
    for name, _, quality, below, median, gap, cost in rows:
        way = PRESETS[name]
        target, draft, own = (made.means(one, "quality") for one in (TARGET, DRAFT, way))
        check(quality, own)
        assert same_figure(Decimal(median), np.median(made.of(way)))
        check(below if way != TARGET else "-", None if way == TARGET else target - own)
        check(gap.removesuffix(" %"), (own - draft) / (target - draft), percent=True)
        assert same_figure(Decimal(cost), made.of(way, "cost").mean() / made.of(TARGET, "cost").mean())
