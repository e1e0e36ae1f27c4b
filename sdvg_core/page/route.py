"""The route of a video as a strip of squares, in the colours and letters of route.png."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..engine.records import BlockRecord
from ..report.summary import COLOURS, INKS, LETTERS, Fate, block_line, fate_of
from .markup import Markup, element, joined

MOST_SQUARES = 400


def colours() -> str:
    """Return the rules of a style sheet for the squares."""
    return "\n".join(f".{style_of(fate)} {{ background: {COLOURS[fate]}; color: {INKS[fate]}; }}" for fate in Fate)


def style_of(fate: Fate) -> str:
    """Return the class of a fate's squares."""
    return fate.name.lower().replace("_", "-")


def strip(blocks: Sequence[BlockRecord]) -> Markup:
    """Return a square per block, which says what happened; Tab reaches one of them, the arrows the others."""
    squares = [_square(record, number, len(blocks)) for number, record in enumerate(blocks[:MOST_SQUARES], 1)]
    more = len(blocks) - len(squares)
    many = " many" if len(blocks) > 24 else ""
    return joined(
        (
            element("ol", *squares, class_=f"route{many}", aria_label="Who made each block"),
            element("p", f"and {more} more blocks", class_="faint") if more else None,
        )
    )


def _square(record: BlockRecord, number: int, of: int) -> Markup:
    fate, line = fate_of(record), said_of(record, number, of)
    button = element(
        "button",
        LETTERS[fate],
        type="button",
        class_=style_of(fate),
        title=line,
        aria_label=line,
        tabindex=0 if number == 1 else -1,
    )
    return element("li", button)


def said_of(record: BlockRecord, number: int, of: int) -> str:
    """Return what happened to a block, and how long it took."""
    earlier = ", made by an earlier run" if record.reused else ""
    return f"{block_line(record, number, of)}; {record.seconds.total:.1f} s{earlier}"


def legend(present: Iterable[Fate]) -> Markup:
    """Return what the letters and colours mean, of the fates that occur."""
    known = set(present)
    entries = [
        element("li", element("b", LETTERS[fate], class_=style_of(fate)), " ", fate.value)
        for fate in Fate
        if fate in known
    ]
    return element("ul", *entries, class_="legend", aria_label="Letters and colours of the blocks")
