"""How a block came about, in the few words, letters and colours that a picture and a progress bar can show."""

from __future__ import annotations

from enum import Enum

from ..engine.records import BlockRecord
from ..engine.router import Reason


class Fate(Enum):
    """The value is what a legend says."""

    FORCED = "forced: the target's"
    KEPT = "draft kept"
    REMADE = "draft rejected, remade by the target"
    DRAFTED_UNSEEN = "draft kept, not scored"
    TARGET_UNSEEN = "the target's, no draft made"
    BAILED_OUT = "bailed out: the target's"


# A script's letters where there is one for it.
LETTERS = dict(zip(Fate, "FardtB", strict=True))
# Okabe and Ito's colours, which people with any kind of colour vision tell apart. Green is the drafter's work and
# orange-red the target's; pale is unseen.
COLOURS = dict(zip(Fate, ("#0072B2", "#009E73", "#D55E00", "#93D6C1", "#F3BC90", "#CC79A7"), strict=True))

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
}


def fate_of(record: BlockRecord) -> Fate:
    """Return how a block came about."""
    return _FATES[record.decision.reason]
