"""How a block came about, in the few words, letters and colours of the picture and the progress bar."""

from __future__ import annotations

from enum import Enum

from ..engine.records import BlockRecord
from ..engine.router import Reason


class Fate(Enum):
    """The value is the text of a legend."""

    FORCED = "forced: by the target"
    KEPT = "draft accepted"
    REMADE = "draft rejected, target regenerated"
    DRAFTED_UNSEEN = "draft accepted, not scored"
    TARGET_UNSEEN = "by the target, without a draft"
    BAILED_OUT = "bailed out: by the target"


# The letters of a script, where it has one.
LETTERS = dict(zip(Fate, "FardtB", strict=True))
# Okabe and Ito's colours, which people with any kind of colour vision can tell apart. Green stands for the drafter,
# orange-red for the target; pale means not scored.
COLOURS = dict(zip(Fate, ("#0072B2", "#009E73", "#D55E00", "#93D6C1", "#F3BC90", "#CC79A7"), strict=True))
# The colour of the letter that reads best on each: at least 4.5:1, WCAG 2.2's figure for text.
INKS = {fate: "#FFFFFF" if fate is Fate.FORCED else "#000000" for fate in Fate}

_FATES = {
    Reason.FORCED: Fate.FORCED,
    Reason.REACHED: Fate.KEPT,
    Reason.SCRIPT_KEPT: Fate.KEPT,
    Reason.FELL_SHORT: Fate.REMADE,
    Reason.NOT_FINITE: Fate.REMADE,
    Reason.SCRIPT_REMADE: Fate.REMADE,
    Reason.UNJUDGED_DRAFT: Fate.DRAFTED_UNSEEN,
    Reason.UNJUDGED_TARGET: Fate.TARGET_UNSEEN,
    Reason.BAILED_OUT: Fate.BAILED_OUT,
    Reason.DIRECTED_DRAFT: Fate.DRAFTED_UNSEEN,
    Reason.DIRECTED_TARGET: Fate.TARGET_UNSEEN,
    Reason.DIRECTED_KEPT: Fate.KEPT,
    Reason.DIRECTED_REMADE: Fate.REMADE,
}


def fate_of(record: BlockRecord) -> Fate:
    """Return how a block came about."""
    return _FATES[record.decision.reason]
