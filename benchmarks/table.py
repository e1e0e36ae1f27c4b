"""A benchmark's result as a table for people; blocks count from 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdvg_core.plan.text import gigabytes
from sdvg_core.report.record_json import SECONDS

COLUMNS = (
    ("route", 12),
    ("execution", 14),
    ("s/video", 9),
    ("spread", 8),
    ("x target", 9),
    ("limit", 7),
    ("share", 7),
    ("x ours", 8),
    ("x publ.", 8),
    *((part, 8) for part in SECONDS),
    ("first", 7),
    ("gap", 7),
    ("worst", 7),
    ("fps", 7),
    ("peak GB", 8),
)
LEFT = ("route", "execution")


def result_text(result: Mapping[str, Any]) -> str:
    """Return the table, the routes in words, the memory, and the notes."""
    lines = [headline(result), "", _row({name: name for name, _ in COLUMNS})]
    lines += [_row(_cells(case)) for case in result["cases"]]
    lines += ["", *_routes(result["cases"]), *_memory(result["memory"]), *result["notes"]]
    return "\n".join(lines)


def check_text(result: Mapping[str, Any]) -> str:
    """Return in sentences how much each execution's video differs from ours."""
    lines = [
        _condition_line(result),
        f"route {result['route']}, differences from ours:",
    ]
    for found in result["checks"]:
        otherwise = len(found["decided_otherwise"])
        lines.append(
            f"{found['execution']}: latents {found['latents']:.2e} (their size {found['latents_rms']:.2e}), frames "
            f"{found['frames']:.2e}, scores {found['scores']:.2e}, {otherwise} of {found['scored_drafts']} drafts "
            "decided otherwise"
        )
    return "\n".join(lines)


def _rounds(repeats: int) -> str:
    return "one round" if repeats == 1 else f"median of {repeats} rounds"


def headline(result: Mapping[str, Any]) -> str:
    """Return in one line the conditions one must know to read the numbers."""
    return f"{_condition_line(result)}, {_rounds(result['repeats'])}"


def _condition_line(result: Mapping[str, Any]) -> str:
    conditions = result["conditions"]
    return (
        f"{result['scale']}: {conditions['drafter']} drafter, {conditions['target']} target, random weights, "
        f"{result['width']}x{result['height']}, {result['blocks']} blocks, "
        f"{conditions['versions']['device']}, torch {conditions['versions']['torch']}, {conditions['dtype']}"
    )


def _cells(case: Mapping[str, Any]) -> dict[str, str]:
    seconds, gaps, peak = case["seconds"], case["gap_seconds"] or {}, case["peak_bytes"]
    return {
        "route": case["route"],
        "execution": case["execution"],
        "s/video": _number(seconds["video"], 3),
        "spread": _spread(case["videos"], seconds["video"]),
        "x target": _number(case["ratio_to_target_only"], 2),
        "limit": _number(case["limit"], 2),
        "share": _percent(case["share_of_limit"]),
        "x ours": _number(case["ratio_to_ours"], 2),
        "x publ.": _number(case["ratio_to_as_published"], 2),
        **{part: _number(seconds[part], 3) for part in SECONDS},
        "first": _number(case["first_frame_seconds"], 3),
        "gap": _number(gaps.get("median"), 3),
        "worst": _number(gaps.get("worst"), 3),
        "fps": _number(case["frames_per_second"], 1),
        "peak GB": _number(peak and peak / 1e9, 1),
    }


def _row(cells: Mapping[str, str]) -> str:
    shown = (f"{cells[name]:<{width}}" if name in LEFT else f"{cells[name]:>{width}}" for name, width in COLUMNS)
    return "".join(shown).rstrip()


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _spread(videos: Sequence[float], median: float) -> str:
    """Return how far the slowest and the fastest video are apart, in percent of the median."""
    return _percent((max(videos) - min(videos)) / median if len(videos) > 1 else None)


def _routes(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which blocks the scripted routes reject."""
    lines = []
    for name, script in dict.fromkeys((case["route"], case["script"]) for case in cases):
        rejected = [str(i + 1) for i, letter in enumerate(script) if letter == "r" and i > 0]
        if name.startswith("r=") and rejected:
            lines.append(f"{name} rejects {'block' if len(rejected) == 1 else 'blocks'} {', '.join(rejected)}.")
    return lines


def _memory(memory: Mapping[str, Any]) -> list[str]:
    lines = [f"Memory {step}: {_compared(found)}." for step, found in memory["peak"].items()]
    weights = memory["weights"].values()
    total = sum(found["bytes"] for found in weights)
    lines.append(f"Weights: {gigabytes(total)}, predicted {gigabytes(sum(f['predicted_bytes'] for f in weights))}.")
    return lines


def _compared(found: Mapping[str, Any]) -> str:
    predicted = f"predicted {gigabytes(found['predicted_bytes'])}"
    if found["bytes"] is None:
        return f"{predicted}, not measured"
    return f"{gigabytes(found['bytes'])} at most, {predicted} ({100 * found['deviation']:+.1f} %)"
