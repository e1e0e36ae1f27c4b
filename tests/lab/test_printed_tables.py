"""Every table of docs/study.md, worked out from its rows a second time."""

from __future__ import annotations

import csv
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from figures_again import (
    BALANCED,
    DRAFT,
    FAST,
    FIRST_TWO,
    PLACED,
    PRESETS,
    SENTENCES,
    TARGET,
    TEXT,
    Measured,
    check,
    same_figure,
    table,
    within_of,
)

from lab.research.tables import CHOOSING, ROWS, named_in, printed
from sdvg_core.errors import BadInput
from sdvg_core.settings.request import STRENGTHS


def test_page_has_its_tables_as_printed():
    """Catches: a table edited by hand, rows added without a print."""
    assert named_in(TEXT)
    assert printed(TEXT, ROWS) == TEXT


@pytest.mark.parametrize("file", sorted(ROWS.glob("*.csv")), ids=lambda file: file.stem)
def test_rows_are_of_different_videos(file):
    """Catches: a video counted twice, by two programs that made the same prompts."""
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    count = Counter((row["way"], row["prompt"], row["seed"]) for row in rows)
    assert max(count.values()) == 1


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
        share = made.of(elsewhere, "nearer_to_the_clip").mean()
        assert same_figure(Decimal(nearer.removesuffix(" %")), share, percent=True)


def test_extended_agree_with_their_rows():
    """Catches: a difference the other way round, frames of another count."""
    made = Measured("extended.csv")
    assert TEXT.split("<!-- table extended -->")[0].endswith(f"On {len(made.prompts)} prompts:\n\n")
    _, rows = table("extended")
    for count, *cells in rows:
        for cell, column in zip(cells, ("quality", "last_block_quality", "last_block_at_its_place"), strict=True):
            gains = made.of(f"given-{count}", column) - made.of(f"whole-{count}", column)
            check(cell, made.drawn(gains), within=within_of(column), bold=True)


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
