"""Print the tables of docs/study.md from the rows in docs/rows.

    python -m lab.research.tables            # writes them into the page
    python -m lab.research.tables --check    # says whether the page has them

A table of the page stands below a line `<!-- table NAME -->`, up to the next empty line; NAME is one of TABLES.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sdvg_core.cli import guarded
from sdvg_core.errors import BadInput
from sdvg_core.files.outputs import whole_file

from .cells import (
    cell,
    compared,
    compared_lines,
    cost_of,
    head_of,
    last_of,
    placed_last_of,
    placed_of,
    quality_of,
    share,
    table_of,
)
from .given import ELSEWHERE, GIVEN, NO_CLIP, ON_ITS_PATH, STRENGTHS
from .looks import CHOSEN, DRAFTER_TO_TARGET, MEASURED, ROWS, WINNER, routes_of_one_cost
from .markdown import markdown
from .protocol import ANCHOR_ONLY, DRAFT_ONLY, FIRST_TWO, POCKET_TAUS, TARGET_ONLY, Configuration, protocol
from .sessions import FILE
from .statistics import NumberOf, Table, against_curve, curve_of, interval, metric
from .variants import PLAIN, TOGETHER

CHOOSING = 60
"""Training prompts by which three of the routes were chosen; see lab/training/LOG.md."""
AT_MOST_BELOW = 0.2
"""Decibels."""
PAGE = ROWS.parent / "study.md"
PRESETS = {
    TARGET_ONLY: ("target-only", "all"),
    "careful": ("careful", "the first 4, of all but the first two of four steps handed over"),
    WINNER.name: ("balanced", "1, 2 and 5, of the last two three of four steps handed over"),
    FIRST_TWO.name: ("first two", "the first 2, of the second two of four steps handed over"),
    ANCHOR_ONLY: ("fast", "the first"),
    DRAFT_ONLY: ("draft-only", "none"),
}
PRINTED = {
    TARGET_ONLY: "",
    "first@2": "",
    "first@4": "",
    FIRST_TWO.name: "first two",
    "handover-2@4": "careful",
    "handover-2@9": "",
    "handover-3@2": "",
    "handover-3@4": "",
    "handover-3@9": "",
    "stride@3": "",
    "stride@4": "",
    "stride-2@3": "",
    "stride-2@4": "",
    "random@0.6": "",
    ANCHOR_ONLY: "fast",
    "reward-min@-1": "",
    "reward-min@-0.7": "",
    "hybrid@-0.7": "",
    "hybrid@-0.4": "",
    f"drafts-3:{ANCHOR_ONLY}": "",
    "drafts-3:hybrid@-0.7": "",
    DRAFT_ONLY: "",
}
"""The ways that the page prints of those that were measured, each with the name of the preset that it is."""
FINISHED = {
    DRAFT_ONLY: "the session",
    "again": "again, first two",
    "refine-light": "refine, light",
    "refine-medium": "refine, medium",
    "refine-strong": "refine, strong",
}
"""The ways to finish a live run, by their names on the page."""


# --- the tables


def presets(folder: Path) -> str:
    """Return the presets' quality over the clip."""
    table = table_of(folder / "presets.csv", PRESETS)
    target, draft = (table.means(way, quality_of) for way in (TARGET_ONLY, DRAFT_ONLY))
    lines = []
    for way, (name, blocks) in PRESETS.items():
        below = table.bootstrap.mean(table.per_prompt(TARGET_ONLY, quality_of) - table.per_prompt(way, quality_of))
        gap = interval((table.means(way, quality_of) - draft) / (target - draft))
        lines.append(
            [
                name,
                blocks,
                cell(table.mean(way, quality_of)),
                "0" if way == TARGET_ONLY else cell(below),
                f"{table.median(way, quality_of):.2f}",
                f"{100 * gap.value:.0f} %" if gap else "-",
                "1" if way == TARGET_ONLY else share(table, way),
            ]
        )
    head = (
        "route",
        "blocks by the target, of 9",
        "quality, dB",
        "below target-only, dB",
        "median",
        "of the gap",
        "cost",
    )
    return markdown(head, lines, words=2)


LAST = {"last block, dB": last_of, "at its place": placed_of, "at its place, last block": placed_last_of}
OF_SESSIONS = {
    "quality, dB": quality_of,
    "last block, dB": last_of,
    "to the draft, dB": metric("to_draft"),
    "thing at the draft's place": metric("overlap"),
}
PLACED = {"quality, dB": quality_of, "last block, dB": last_of, "at its place, last block": placed_last_of}


def presets_last(folder: Path) -> str:
    """Return what the last block of the presets shows."""
    names = {way: name for way, (name, _) in PRESETS.items()}
    return compared(table_of(folder / "presets.csv", PRESETS), names, TARGET_ONLY, LAST)


def best_placed(table: Table, count: int) -> list[str]:
    """Return the routes with the thing at its place in the last block most often, of those near FIRST_TWO.

    Near is at most AT_MOST_BELOW below it over the clip: a rule fixed before looking (lab/training/LOG.md).
    """
    routes = [way for way in table.rows if way != FIRST_TWO.name]
    near = [way for way in routes if table.difference(way, FIRST_TWO.name, quality_of).value >= -AT_MOST_BELOW]
    return sorted(near, key=lambda way: -table.mean(way, placed_last_of).value)[:count]


def names_of(ways: Iterable[Configuration]) -> dict[str, str]:
    """Return the names on the page of routes of one cost."""
    return {way.name: "first two" if way is FIRST_TWO else way.name for way in ways}


def places(folder: Path) -> str:
    """Return all routes of one cost on the prompts that chose three of them."""
    names = names_of(MEASURED["places"].ways)
    return compared(table_of(folder / "places.csv", names, CHOOSING), names, FIRST_TWO.name, PLACED)


def places_chosen(folder: Path) -> str:
    """Return the three, on all prompts that they have."""
    names = names_of((FIRST_TWO, *CHOSEN))
    return compared(table_of(folder / "places.csv", names), names, FIRST_TWO.name, PLACED)


def places_held_out(folder: Path) -> str:
    """Return the one that was best of the three, on held-out prompts."""
    names = names_of((FIRST_TWO, WINNER))
    return compared(table_of(folder / "presets.csv", names), names, FIRST_TWO.name, PLACED)


def places_longer(folder: Path) -> str:
    """Return it in a longer clip, and where it would stand there as shares of the length."""
    names = names_of(MEASURED["places-21"].ways)
    return compared(table_of(folder / "places-21.csv", names), names, FIRST_TWO.name, PLACED)


LATE = {
    "last 8 blocks, dB": metric("late_clearness"),
    "clip, dB": quality_of,
    **LAST,
}
"""Figures of a long clip; the first at whichever moment of the thing's way fits best."""
HELD = {**LATE, "colour drift": metric("late_drift")}
NAMED = dict(zip((way.name for way in DRAFTER_TO_TARGET), ("drafter", "balanced", "target"), strict=True))
EACH_ITS_OWN = f"recompute{TOGETHER}deep-sink"
"""Each model's own best memory by its look alone (lab/training/LOG.md): the drafter's, and the target's."""
REMEMBERED = {
    "recompute": "recomputed",
    "window": "window",
    "deep-sink": "deep sink",
    "memrope": "MemRoPE",
}
"""Memories by their names on the page. Here and below, the first is what the others are compared with."""
IN_FORMAT = {PLAIN: "16 bits", "int8": "int8", "w4a8": "w4a8"}
DRAFTER_LESS = {f"int8{TOGETHER}w4a8": "w4a8, the drafter int8"}
DECODED = {"vae": "VAE", "taehv": "TAEHV"}
WITH_HOLD = {"0": "free", "0.3": "held 0.3"}


def variants(
    look: str,
    names: Mapping[str, str],
    of_balanced: Mapping[str, str],
    columns: Mapping[str, NumberOf],
    folder: Path,
) -> str:
    """Return what videos become with each variant of the models, compared with the first of `names`.

    `of_balanced`: variants in which the two models differ, for the one route that has both.
    """
    first = next(iter(names))
    each = {way: {**names, **(of_balanced if route == "balanced" else {})} for way, route in NAMED.items()}
    table = table_of(folder / f"{look}.csv", {f"{way}/{name}" for way, of in each.items() for name in of})
    lines = []
    for way, route in NAMED.items():
        shown = {f"{way}/{name}": f"{route}, {words}" for name, words in each[way].items()}
        lines += compared_lines(table, shown, f"{way}/{first}", columns)
    return markdown(head_of(columns, names[first]), lines)


def long_routes(blocks: int, folder: Path) -> str:
    """Return routes of one cost in long clips with recomputed contexts, compared with as many first blocks."""
    routes = [way.name for way in routes_of_one_cost(blocks)]
    first = next(name for name in routes if name.startswith("first@"))
    names = {f"{name}/recompute": "balanced" if name == WINNER.name else name for name in routes}
    table = table_of(folder / f"routes-{blocks}.csv", names)
    lines = compared_lines(table, names, f"{first}/recompute", LATE)
    of_target = f"{TARGET_ONLY}/recompute"
    whole = table_of(folder / f"memories-{blocks}.csv", [of_target]).mean(of_target, cost_of).value
    for way, line in zip(names, lines, strict=True):
        line.insert(1, f"{table.mean(way, cost_of).value / whole:.2f}")
    route, *head = head_of(LATE, first)
    return markdown((route, "cost", *head), lines)


HANDED_OVER = {f"handover-2@{m}": f"passes-2@{m}" for m in (2, 4, 9)}
"""Ways with two steps handed over, each with its control: as few passes of the target, and no draft."""


def control(folder: Path) -> str:
    """Return handovers, each beside its control, and by how much it is above that."""
    table = table_of(folder / "control.csv")
    lines = []
    for way, without in HANDED_OVER.items():
        line = [way.removeprefix("handover-2@")]
        for one in (way, without):
            minus = table.difference(one, TARGET_ONLY, quality_of)
            line += [share(table, one), cell(minus, "+.2f", bold=True)]
        gains = (table.difference(way, without, number) for number in (quality_of, placed_last_of))
        lines.append([*line, *(cell(gain, "+.2f", bold=True) for gain in gains)])
    head = (
        "first blocks", "handed over: cost", "minus target-only, dB", "left out: cost", "minus target-only, dB",
        "handed over minus left out, dB", "the same, at its place, last block",
    )  # fmt: skip
    return markdown(head, lines)


def finishes(folder: Path) -> str:
    """Return the ways to finish a live run."""
    return compared(table_of(folder / FILE, FINISHED), FINISHED, "again", OF_SESSIONS)


def ways(folder: Path) -> str:
    """Return the ways against first blocks and chance at the same cost."""
    table = table_of(folder / "ways.csv")
    known = [way for way in protocol(9, POCKET_TAUS) if way.name in table.rows]
    curves = {group: curve_of(group, known) for group in ("first", "random")}
    groups = {way.name: way.group for way in known}
    lines = []
    for way, preset in PRINTED.items():
        minus = table.difference(way, TARGET_ONLY, quality_of)
        lines.append(
            [
                f"{way}, *{preset}*" if preset else way,
                f"{table.mean(way, quality_of).value:.2f}",
                f"{table.median(way, quality_of):.2f}",
                "-" if way == TARGET_ONLY else cell(minus, "+.2f"),
                share(table, way),
                *(_against(table, way, groups[way], group, curve) for group, curve in curves.items()),
            ]
        )
    head = (
        "way", "quality, dB", "median", "minus target-only", "cost", "minus first m, same cost",
        "minus random, same cost",
    )  # fmt: skip
    return markdown(head, lines)


def ways_last(folder: Path) -> str:
    """Return what the last block of the same ways shows."""
    return compared(table_of(folder / "ways.csv"), {way: way for way in PRINTED}, TARGET_ONLY, LAST)


def _against(table: Table, way: str, own: str, group: str, curve: Sequence[str]) -> str:
    """Return a way against a curve; a dash if it is one of the curve's, or cheaper than *fast*."""
    if own == group or way in curve:
        return "-"
    with_target = [name for name in curve if name != DRAFT_ONLY]
    return cell(against_curve(table, way, with_target, cost_of, quality_of), "+.2f", bold=True)


# --- clips that are given

SHOWN_STRENGTHS = {NO_CLIP: "no clip", "strong": "strong", "medium": "medium", "light": "light"}


def restyled(folder: Path) -> str:
    """Return what the target makes of a clip, on the prompt's own path and on another."""
    table = table_of(folder / "restyled.csv")
    lines = []
    for strength in STRENGTHS:
        on_it, elsewhere = (f"target/{path}/{strength}" for path in (ON_ITS_PATH, ELSEWHERE))
        nearer = table.mean(elsewhere, metric("nearer_to_the_clip")).value
        lines.append(
            [
                SHOWN_STRENGTHS.get(strength, strength),
                *(cell(table.mean(on_it, number)) for number in (quality_of, placed_last_of)),
                *(cell(table.mean(elsewhere, number)) for number in (quality_of, placed_last_of)),
                f"{100 * nearer:.0f} %",
            ]
        )
    head = (
        "strength", "the prompt's path: dB", "at its place, last block", "another path: dB",
        "at its place, last block", "blocks nearer to the clip's path",
    )  # fmt: skip
    return markdown(head, lines)


def extended(folder: Path) -> str:
    """Return by how much new frames are above the same frames of a video that was made whole."""
    table = table_of(folder / "extended.csv")
    lines = [
        [
            str(count),
            *(
                cell(table.difference(f"given-{count}", f"whole-{count}", number), "+.2f", bold=True)
                for number in PLACED.values()
            ),
        ]
        for count in GIVEN
    ]
    return markdown(("given latent frames", *(f"{head}: minus made whole" for head in PLACED)), lines)


TABLES: Mapping[str, Callable[[Path], str]] = {
    "presets": presets,
    "presets-last": presets_last,
    "places": places,
    "places-chosen": places_chosen,
    "places-held-out": places_held_out,
    "places-21": places_longer,
    "ways": ways,
    "ways-last": ways_last,
    "control": control,
    "sessions": finishes,
    "memories-21": partial(variants, "memories-21", REMEMBERED, {EACH_ITS_OWN: "each its own"}, LATE),
    "memories-42": partial(variants, "memories-42", REMEMBERED, {}, LATE),
    "routes-21": partial(long_routes, 21),
    "routes-42": partial(long_routes, 42),
    "formats": partial(variants, "formats", IN_FORMAT, DRAFTER_LESS, PLACED),
    "decoders": partial(variants, "decoders", DECODED, {}, PLACED),
    "holds-21": partial(variants, "holds-21", WITH_HOLD, {}, HELD),
    "restyled": restyled,
    "extended": extended,
}


# --- the page


def named_in(text: str) -> list[str]:
    """Return the names of the tables that a page has."""
    return re.findall(r"^<!-- table (\S+) -->$", text, re.MULTILINE)


def printed(text: str, folder: Path) -> str:
    """Return a page with its tables printed anew. Raises `BadInput` for a table that is not known."""
    for name in named_in(text):
        if name not in TABLES:
            raise BadInput(
                f"the page asks for the table {name}, which is not known; choose among {', '.join(TABLES)}"
            )
        begin = f"<!-- table {name} -->"
        before, after = text.split(begin, 1)
        rest = after[after.index("\n\n") :]
        text = f"{before}{begin}\n{TABLES[name](folder)}{rest}"
    return text


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables, or check them, and return the exit code."""
    parser = argparse.ArgumentParser("python -m lab.research.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page differs")
    options = parser.parse_args(words)
    return guarded(lambda: _print(check=options.check), extra="research", instead="study")


def _print(*, check: bool) -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = printed(before, ROWS)
    if check:
        return int(before != after)
    with whole_file(PAGE) as path:
        path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
