"""Results of a full-size benchmark that nobody ran: made up, in the shape in which `bench --json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_parts import case

from benchmarks.measure import Sample
from benchmarks.results import COLUMNS, SCHEMA, result_text, summarise_cases
from benchmarks.variants import AS_PUBLISHED, parse_variant
from sdvg_core.engine.records import Seconds

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
        "side_device": "cuda",
        "gpu": {"name": "Imaginary GPU"},
        **{"drafter": "1.3B", "target": "14B", "dtype": "bfloat16"},
        "executions": {name: {"as_published": name == AS_PUBLISHED.name} for name in executions},
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


ON_A_CPU = {"conditions": {**result()["conditions"], "gpu": None}}

NOT_MEASURED = "not a measurement of speed"


def rows(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The first table of a page: its cells by column, by execution and route."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    end = next(i for i, cells in enumerate(table) if "peak memory of" in cells[0])
    assert tuple(table[0]) == COLUMNS
    return {(cells[0], cells[1]): dict(zip(COLUMNS, cells, strict=True)) for cells in table[2:end]}


def row_at(ratio: float, route: str = "r=1", execution: str = "ours", **changes: Any) -> dict[str, str]:
    """The row of a route that is `ratio` times as fast as target-only."""
    seconds = {(execution, "target-only"): ratio, (execution, route): 1.0}
    return rows(result_text(result(seconds, **changes)))[execution, route]
