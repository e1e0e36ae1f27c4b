"""What the sentences of docs/study.md say of two or more ways, worked out from the rows a second time."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from figures_again import (
    BALANCED,
    DRAFT,
    FAST,
    LAST,
    PLACED,
    PRESETS,
    SENTENCES,
    TARGET,
    Measured,
    check,
    numbers_in,
    same_figure,
    table,
    within_of,
)


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


def test_sentences_on_restyled_clips_agree():
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
    assert "18 % [9, 28] of the blocks" in SENTENCES
    check("18 [9, 28]", 100 * made.means("target/other-path/light", "nearer_to_the_clip"), within=1)


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
