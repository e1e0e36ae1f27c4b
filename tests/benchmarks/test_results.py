"""From samples to numbers to a page: each in its place."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench_parts import case

from benchmarks.measure import Sample
from benchmarks.results import COLUMNS, SCHEMA, result_text, summarise_cases
from benchmarks.variants import parse_variant
from sdvg_core.engine.records import Seconds

# --- results of a full-size benchmark that nobody ran, in the shape in which `bench --json` prints them

# Seconds of a video.
PLAIN = {("ours", "target-only"): 96.0, ("ours", "anchor-only"): 30.0, ("ours", "r=1"): 48.0}


def sample(*arrivals: float, decode: float = 0.0, peak: int | None = None) -> Sample:
    return Sample(arrivals=arrivals, parts=Seconds(decode=decode), passes={}, pixel_frames=105, peak=peak)


def result(seconds: Mapping[tuple[str, str], float] = PLAIN, **changes: Any) -> dict[str, Any]:
    """A run that took `seconds` for a video of each execution and route, each made once of once."""
    samples = {
        case(route, parse_variant(execution)): [sample(1.0, taken, peak=41_500_000_000)]
        for (execution, route), taken in seconds.items()
    }
    executions = dict.fromkeys(execution for execution, _ in seconds)
    compared = {"bytes": 40_000_000_000, "predicted_bytes": 41_000_000_000, "deviation": 0.025}
    conditions = {
        "versions": {"sdvg": "0", "torch": "2", "device": "cuda: Imaginary GPU"},
        "device": "cuda",
        "gpu": {"name": "Imaginary GPU"},
        **{"drafter": "1.3B", "target": "14B", "dtype": "bfloat16"},
        "executions": {name: {} for name in executions},
    }
    return {
        **{"benchmark": "sdvg", "schema": SCHEMA, "scale": "full", "width": 832, "height": 480, "blocks": 9},
        **{"repeats": 1, "interrupted": False},
        "conditions": conditions,
        "cases": summarise_cases(samples),
        "memory": {"peak": {"draft": compared}},
        "notes": ["Made up."],
        **changes,
    }


def rows(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The first table of a page: its cells by column, by execution and route."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    end = next(i for i, cells in enumerate(table) if "peak memory of" in cells[0])
    assert tuple(table[0]) == COLUMNS
    return {(cells[0], cells[1]): dict(zip(COLUMNS, cells, strict=True)) for cells in table[2:end]}


# --- what is made of them


def test_ratios_follow_from_the_medians():
    target = case("target-only")
    gate = case("r=1")
    planes = case("r=1", parse_variant("planes"))
    found = summarise_cases(
        {
            target: [sample(1, 10), sample(1, 90), sample(1, 12)],
            gate: [sample(1, 4, decode=3, peak=7), sample(2, 3, decode=1, peak=9), sample(3, 6, decode=2, peak=8)],
            planes: [sample(2, 8)],
            case("r=2"): [],
        }
    )
    base, fast, slow = found
    assert [entry["route"] for entry in found] == ["target-only", "r=1", "r=1"]
    assert base["seconds"]["video"] == median([10, 90, 12])
    assert base["ratio_to_target_only"] == 1
    assert (fast["seconds"]["video"], fast["seconds"]["decode"], fast["peak_bytes"]) == (4, 2, 9)
    assert fast["ratio_to_target_only"] == 12 / 4
    assert fast["block_seconds"] == [2, 3]
    assert fast["first_frame_seconds"] == 2
    assert fast["frames_per_second"] == 105 / 4
    assert slow["ratio_to_target_only"] is None, "no target-only was made in this execution"
    assert slow["ratio_to_ours"] == 4 / 8


def test_a_row_shows_what_was_measured():
    found = rows(result_text(result()))
    assert list(found) == list(PLAIN)
    assert (
        found["ours", "anchor-only"].items()
        >= {
            "execution": "ours",
            "route": "anchor-only",
            "x target-only": "3.20x",
            "s per video": "30.000",
            "s to first frame": "1.000",
            "frames per s": "3.5",
            "peak memory": "41.5 GB",
        }.items()
    )
