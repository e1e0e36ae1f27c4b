"""A report in a few lines for people, who count blocks and frames from 1."""

from __future__ import annotations

from .record_json import SECONDS
from .run_report import RunReport, worst_score


def summarise(report: RunReport) -> str:
    """Return what the run did: lengths, fates, acceptance, the worst frame, seconds, and the notes."""
    lines = [_length(report), fates(report), acceptance(report), *_worst(report), *_time(report), *report.notes]
    return "\n".join(lines)


def _length(report: RunReport) -> str:
    blocks, frames = count(len(report.blocks), "block"), count(report.pixel_frames, "pixel frame")
    return f"{blocks}, {frames}, {report.pixel_frames / report.fps:.1f} s at {report.fps:g} fps"


def fates(report: RunReport) -> str:
    """Return how many blocks were accepted, regenerated, forced, by the target without a draft, and handed over."""
    tally = report.tally
    unseen = tally.by_target - tally.rejected - tally.forced
    line = f"accepted {count(tally.accepted, 'draft')}, regenerated {tally.rejected}, forced {tally.forced}"
    handed = sum(record.handover > 0 for record in report.blocks)
    line += f", by the target without a draft {unseen}" if unseen else ""
    return line + (f", handed over {handed}" if handed else "")


def acceptance(report: RunReport) -> str:
    """Return the acceptance rate, if anything was scored, and the draft share."""
    tally = report.tally
    drafted = f"draft share {percent(tally.draft_share)} ({tally.accepted} of {count(tally.blocks, 'block')})"
    if not tally.scored:
        return drafted
    judged = f"{tally.accepted_scored} of {tally.scored} scored"
    return f"acceptance rate {percent(tally.acceptance_rate)} ({judged}), {drafted}"


def _worst(report: RunReport) -> list[str]:
    block = report.worst_block
    if block is None:
        return []
    frame = block.decision.frame_scores.index(worst_score(block))
    return [f"worst frame {worst_score(block):.2f}: pixel frame {frame + 1} of block {block.span.index + 1}"]


def _time(report: RunReport) -> list[str]:
    seconds = report.seconds
    parts = ", ".join(f"{part} {getattr(seconds, part):.1f}" for part in SECONDS)
    after = "" if report.delivery_seconds is None else f"; then {report.delivery_seconds:.1f} s to decode the video"
    lines = [f"{seconds.total:.1f} s in blocks: {parts}{after}"]
    if report.speed_up:
        against = f"{report.target_only_seconds:.1f} s, {report.target_only_source}"
        lines.append(f"{report.speed_up:.2f}x as fast as target-only ({against})")
    return lines


def percent(value: float | None) -> str:
    """Return a share as a percentage."""
    return "unknown" if value is None else f"{100 * value:.1f} %"


def count(number: int, what: str) -> str:
    """Return `1 block`, `2 blocks`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
