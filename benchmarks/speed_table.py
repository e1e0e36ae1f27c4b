"""Runs of the benchmark as a Markdown page: for each a table, what it is compared with, and its conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdvg_core.plan.text import STEP_NAMES, gigabytes

from .goals import (
    AGAINST_PUBLISHED,
    AGAINST_PUBLISHED_ROUTE,
    MEMORY_TOLERANCE,
    Goal,
    goals_of,
    in_words,
    not_a_measurement,
)
from .table import headline
from .variants import OURS

Result = Mapping[str, Any]
COLUMNS = (
    "execution",
    "route",
    "x target-only",
    "published",
    "must reach",
    "share of limit",
    "s per video",
    "s to first frame",
    "frames per s",
    "peak memory",
)
PREAMBLE = """\
# Speed

A ratio is to target-only in the same execution and the same run. *Published* is what the paper reports (arXiv
2604.17397, two RTX A6000, 832x480, nine blocks) and was not measured here: anchor-only is printed there, the others
follow from its times per prompt. *Must reach* is this project's own goal. The limit is the speed-up if drafting and
routing took no time: 9 / (1 + r) with r of nine blocks rejected."""

UNHELD = "Goals and published figures are compared for nine blocks at 832x480 on one GPU: not for this run."


def speed_page(runs: Mapping[str, Result], *, charted: str, picture: str, commit: str | None = None) -> str:
    """Return the page of all runs, by name. `picture`: the file that shows the one named `charted`."""
    shown = f"![Bar chart of the speed-ups over target-only]({picture})\n\n*Run {charted}.*"
    made_from = [f"Commit {commit}."] if commit else []
    sections = [section(name, result) for name, result in runs.items()]
    return "\n\n".join([PREAMBLE, shown, *made_from, *sections]) + "\n"


def section(name: str, result: Result) -> str:
    """Return the section on one run."""
    warning = not_a_measurement(result)
    goals = goals_of(result)
    parts = [
        f"## {name}",
        *([f"**{warning}**"] if warning else []),
        f"{headline(result)}.",
        *([] if goals else [UNHELD]),
        *_unfinished(result),
        markdown_table(COLUMNS, [_cells(case, result, goals) for case in result["cases"]], words=2),
        *([_against_published(result)] if goals else []),
        _memory(result["memory"]["peak"]),
        _conditions(result["conditions"]),
        " ".join(result["notes"]),
    ]
    return "\n\n".join(parts)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table. The first `words` columns hold text, the others numbers."""
    rule = ["---" if i < words else "---:" for i in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))


def _cells(case: Result, result: Result, goals: Mapping[str, Goal]) -> list[str]:
    ratio, share, peak = case["ratio_to_target_only"], case["share_of_limit"], case["peak_bytes"]
    goal = goals.get(case["route"])
    return [
        case["execution"],
        case["route"],
        _number(ratio, 2, "x"),
        goal.printed if goal else "-",
        _verdict(ratio, goal) if not _as_published(case, result) else "-",
        _number(share and 100 * share, 0, " %"),
        _number(case["seconds"]["video"], 3),
        _number(case["first_frame_seconds"], 3),
        _number(case["frames_per_second"], 1),
        gigabytes(peak) if peak else "-",
    ]


def _verdict(ratio: float | None, goal: Goal | None) -> str:
    if goal is None or goal.must_reach is None:
        return "-"
    return f"{goal.must_reach}x, {'not measured' if ratio is None else in_words(ratio, goal.must_reach)}"


def _as_published(case: Result, result: Result) -> bool:
    return bool(result["conditions"]["executions"][case["execution"]]["as_published"])


def _number(value: float | None, decimals: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{decimals}f}{unit}"


def _unfinished(result: Result) -> list[str]:
    """Say which cases of an interrupted run have fewer videos than asked for."""
    if not result["interrupted"]:
        return []
    asked = result["repeats"]
    short = [f"{c['execution']} {c['route']} ({c['repeats']})" for c in result["cases"] if c["repeats"] < asked]
    fewer = f" Fewer than {asked} videos were made of: {', '.join(short)}." if short else ""
    return [f"Interrupted: cases that are missing were not finished.{fewer}"]


def _against_published(result: Result) -> str:
    """Compare each of our executions with the authors' order of work in the same run."""
    ratios = {
        case["execution"]: case["ratio_to_as_published"]
        for case in result["cases"]
        if case["route"] == AGAINST_PUBLISHED_ROUTE and case["ratio_to_as_published"]
    }
    against = f"as-published in this run at {AGAINST_PUBLISHED_ROUTE} (must reach {AGAINST_PUBLISHED}x)"
    if not ratios:
        return f"Not compared with {against}."
    found = [f"{name} {ratio:.2f}x, {in_words(ratio, AGAINST_PUBLISHED)}" for name, ratio in ratios.items()]
    return f"As fast as {against}: {'; '.join(found)}."


def _memory(peaks: Mapping[str, Result]) -> str:
    rows = [
        [STEP_NAMES[step], gigabytes(found["predicted_bytes"]), *_measured(found)] for step, found in peaks.items()
    ]
    return markdown_table((f"peak memory of {OURS.name} in", "predicted", "measured", "prediction is off by"), rows)


def _measured(found: Result) -> tuple[str, str]:
    if found["bytes"] is None:
        return "not measured", "-"
    off = found["deviation"]
    within = "within" if abs(off) <= MEMORY_TOLERANCE else "not within"
    return gigabytes(found["bytes"]), f"{100 * off:+.1f} %, {within} {100 * MEMORY_TOLERANCE:.0f} %"


def _conditions(conditions: Result) -> str:
    versions = {name: version for name, version in conditions["versions"].items() if name != "device"}
    lines = [
        f"Device: {_device(conditions)}{_beside(conditions)}.",
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        f"Numbers: transformers {conditions['dtype']}, the target's weights {conditions['target_weights']}, "
        f"VAE {conditions['vae_dtype']}, scorer {conditions['reward_dtype']}, "
        f"keys and values {conditions['kv_dtype']}.",
        *(f"{name}: {_execution(setup)}." for name, setup in conditions["executions"].items()),
    ]
    return "Conditions:\n\n" + "\n".join(f"- {line}" for line in lines)


def _device(conditions: Result) -> str:
    gpu = conditions["gpu"]
    if gpu is None:
        return f"{conditions['versions']['device']}, threads: {conditions['threads']}"
    tf32 = ", ".join(f"{name} {_switch(on)}" for name, on in gpu["tf32"].items())
    return (
        f"{gpu['name']}, {gigabytes(gpu['memory_bytes'])}, driver and power limit {gpu['driver'] or 'not known'}, "
        f"CUDA {gpu['cuda']}, cuDNN {gpu['cudnn']}, TF32 {tf32}"
    )


def _beside(conditions: Result) -> str:
    if conditions["side_device"] == conditions["device"]:
        return ""
    name = conditions["side_gpu"]
    return f"; VAE and scorer on {conditions['side_device']}" + (f", {name}" if name else "")


def _execution(setup: Result) -> str:
    kernels = " and ".join(dict.fromkeys(setup["attention"].values()))
    return (
        f"schedule {setup['schedule']}, attention {kernels}, compile {setup['compile']}, VAE layers "
        f"{setup['vae_layers']}, overlap {_switch(setup['overlap'])}"
    )


def _switch(on: bool) -> str:
    return "on" if on else "off"
