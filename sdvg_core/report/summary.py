"""Describe a block and a whole run in sentences, letters and colours, for terminal, node and picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby

from ..engine.records import BlockRecord
from ..errors import count
from ..settings.decision import Decision, Reason
from .run_report import SECONDS, RunReport, worst_score


class Outcome(Enum):
    """Who made a block and why; the value is its label in strip and picture."""

    FORCED = "large model, by rule"
    KEPT = "small model, checked"
    REMADE = "large model, remade"
    DRAFTED_UNSEEN = "small model, not checked"
    TARGET_UNSEEN = "large model"
    BAILED_OUT = "large model, after too many remakes"
    REFINED = "large model, over the draft"


# The letters of directions, where an outcome has one; O: over the draft.
OUTCOME_LETTERS = dict(zip(Outcome, "FardtBO", strict=True))
# Okabe and Ito's palette, for all kinds of colour vision. Green: drafter; orange-red: target; pale: not scored;
# yellow: both.
OUTCOME_COLOURS = dict(
    zip(Outcome, ("#0072B2", "#009E73", "#D55E00", "#93D6C1", "#F3BC90", "#CC79A7", "#F0E442"), strict=True)
)
# Text colours with a contrast of at least 4.5:1, WCAG 2.2's limit.
INKS = {outcome: "#FFFFFF" if outcome is Outcome.FORCED else "#000000" for outcome in Outcome}


def outcome_of(record: BlockRecord) -> Outcome:
    """Return the outcome of a block."""
    decision = record.decision
    if decision.reason in (Reason.FORCED, Reason.BAILED_OUT, Reason.REFINED):
        return Outcome[decision.reason.name]
    if decision.accepted:
        return Outcome.KEPT if decision.scored else Outcome.DRAFTED_UNSEEN
    return Outcome.REMADE if decision.scored else Outcome.TARGET_UNSEEN


def block_line(record: BlockRecord, number: int, total: int) -> str:
    """Describe block `number` of `total`, from 1: its outcome and why."""
    decision = record.decision
    if decision.accepted:
        outcome = "draft kept"
    elif record.refined:
        outcome = f"draft refined by the large model in place of its first {count(record.refined, 'step')}"
    elif decision.scored:
        outcome = "remade by the large model"
    else:
        outcome = "made by the large model"
    if record.handover:
        outcome += f" after {count(record.handover, 'step')} of the small one"
    if record.left_out:
        outcome += f" with {count(record.left_out, 'step')} left out"
    return f"block {number}/{total}: {outcome}, {_evidence(decision)}"


def _evidence(decision: Decision) -> str:
    """Return the comparison that decided, or else the reason."""
    score = decision.score
    threshold = decision.threshold
    if score is None:
        return decision.reason.value
    scored = decision.known_scores
    worst = "weakest frame" if len(scored) == len(decision.frame_scores) else f"weakest of {len(scored)} frames"
    name = worst if score == min(scored, default=None) else "score"
    if threshold is None:
        return f"{decision.reason.value}, {name} {score:.2f}"
    left, right = _tell_apart(score, threshold)
    return f"{name} {left} {'>=' if decision.accepted else '<'} {right}"


def _tell_apart(score: float, threshold: float) -> tuple[str, str]:
    """Format two numbers with two decimals, or as many as show the difference."""
    for decimals in range(2, 8):
        numbers = (f"{score:.{decimals}f}", f"{threshold:.{decimals}f}")
        if numbers[0] != numbers[1]:
            return numbers
    return f"{score:.2f}", f"{threshold:.2f}"


def summarise(report: RunReport) -> str:
    """Summarise a run in lines: length, route, acceptance, weakest frame, drift, seconds and notes."""
    return "\n".join(filter(None, [*_figures(report), *report.notes]))


def _figures(report: RunReport) -> Iterator[str]:
    if not report.blocks:
        yield acceptance(report)
        return
    blocks = count(len(report.blocks), "block")
    if clips := report.clip_frames:
        blocks += f" and {count(len(clips), 'clip')}"
    frames = count(report.pixel_frames, "pixel frame")
    yield f"{blocks}, {frames}, {report.pixel_frames / report.fps:.1f} s at {report.fps:g} fps"
    yield route_in_words(report)
    if handed := [report.number_of(record) for record in report.blocks if record.handover]:
        yield f"begun by the small model and handed over: {ranges(handed)}"
    if fewer := [report.number_of(record) for record in report.blocks if record.left_out]:
        yield f"made by the large model in fewer steps: {ranges(fewer)}"
    yield acceptance(report)
    if block := report.worst_block:
        score = worst_score(block)
        frame = block.decision.frame_scores.index(score) + 1
        yield f"weakest frame {score:.2f}: pixel frame {frame} of block {report.number_of(block)}"
    drifts = [(record.drift, report.number_of(record)) for record in report.blocks if record.drift is not None]
    if drifts:
        largest, number = max(drifts)
        yield f"colour shift from the scene's start: at most {largest:.2f}, in block {number} (visible from 0.3)"
    parts = ", ".join(f"{part} {getattr(report.seconds, part):.1f}" for part in SECONDS)
    yield f"{report.seconds.total:.1f} s in blocks: {parts}"
    if report.speed_up:
        predicted = f"{report.target_only_seconds:.1f} s, predicted from its blocks"
        yield f"{speed_in_words(report)} ({predicted})"


def speed_in_words(report: RunReport) -> str:
    """Compare a run whose speed-up is known with the large model alone."""
    if report.speed_up and report.speed_up >= 1:
        return f"{report.speed_up:.2f}x as fast as the large model alone"
    tally = report.tally
    remade = tally.scored - tally.accepted_scored
    drafts = "all drafts" if remade == tally.scored else f"{remade} of {count(tally.scored, 'draft')}"
    why = f": {drafts} were remade" if remade else ""
    return f"slower than the large model alone{why}"


def route_in_words(report: RunReport) -> str:
    """Return the blocks of each outcome, such as `large model, by rule: 1; small model, checked: 2 to 6, 8`."""
    blocks: dict[str, list[int]] = {outcome.value: [] for outcome in Outcome}
    for record in report.blocks:
        blocks[outcome_of(record).value].append(report.number_of(record))
    return "; ".join(f"{outcome}: {ranges(numbers)}" for outcome, numbers in blocks.items() if numbers)


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text, such as `1 to 3, 5`."""
    groups = groupby(numbers, lambda number: number - numbers.index(number))
    spans = [[*group] for _, group in groups]
    return ", ".join(f"{span[0]} to {span[-1]}" if span[1:] else str(span[0]) for span in spans)


def acceptance(report: RunReport) -> str:
    """Return counts of blocks by the small model, and of scored drafts that were kept."""
    tally = report.tally
    if not tally.blocks:
        return "no new block: all of them were locked"
    drafted = f"{tally.accepted} of {count(tally.blocks, 'block')} by the small model"
    if not tally.scored:
        return drafted
    return f"{drafted}, {tally.accepted_scored} of {count(tally.scored, 'checked draft')} kept"
