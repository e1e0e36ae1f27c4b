"""A study on the page: its configurations, its plots, and every row."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..files.outputs import PICTURE
from ..files.small_files import MEGABYTE, parse_json, read_small
from ..report.summary import LETTERS, Fate
from ..study.statistics import too_few
from ..study.store import ROW_KEY, ROWS, SUMMARY, Record, read_records
from .markup import Markup, element, joined
from .route import legend, style_of
from .table import NOTHING, Cell, figure, number, sortable
from .videos import is_there, lies_in, without_folder

MOST_ROWS, MOST_PLOTS = 5000, 24
LARGEST_ROWS, LARGEST_SUMMARY, LARGEST_PLOT = 256 * MEGABYTE, 64 * MEGABYTE, 2 * MEGABYTE
LONGEST_ROUTE, MOST_METRICS = 100, 8
PNG = b"\x89PNG\r\n\x1a\n"
FATES = {letter: fate for fate, letter in LETTERS.items()}


def is_study(folder: Path) -> bool:
    """Whether a folder has what a study writes."""
    return any(is_there(folder / name) for name in (ROWS, SUMMARY))


def study_section(folder: Path) -> tuple[Markup, int]:
    """Return a study's part of the page, and how many rows there are. What cannot be read is a sentence there."""
    rows, count = _rows_part(folder)
    parts = (_configurations(folder), _plots(folder), rows)
    return element("section", element("h2", "Study"), *parts, class_="study"), count


def _plots(folder: Path) -> Markup | None:
    names = sorted(path.name for path in folder.glob("*.png") if path.name != PICTURE)
    figures = [_plot(folder / name) for name in names[:MOST_PLOTS] if lies_in(folder / name, folder)]
    return element("div", *figures, class_="plots") if any(figures) else None


def _plot(path: Path) -> Markup | None:
    try:
        content = read_small(path, LARGEST_PLOT)
    except (OSError, ValueError):
        content = b""
    name = path.stem.replace("_", " ")
    if not content.startswith(PNG):
        return _sentence(f"The plot {path.name} is no PNG of at most {LARGEST_PLOT // MEGABYTE} MB.")
    source = Markup("data:image/png;base64," + base64.b64encode(content).decode("ascii"))
    return element("figure", element("img", src=source, alt=name))


def _configurations(folder: Path) -> Markup | None:
    """Return the table of configurations, with intervals."""
    if not is_there(folder / SUMMARY):
        return _sentence("There is no summary.json yet, so there are no figures with intervals.")
    try:
        if not lies_in(folder / SUMMARY, folder):
            raise ValueError("it is no file, or leads out of the folder")
        summary = parse_json(read_small(folder / SUMMARY, LARGEST_SUMMARY))
        known, metric = summary["configurations"], summary["quality"]["metric"]
        rows = [_configuration(one, metric) for one in known]
        few = too_few(summary["prompts"]) if "prompts" in summary else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return _sentence(f"{SUMMARY} cannot be read ({type(error).__name__}); run the study again.")
    if not rows:
        return None
    headers = (
        "configuration", "quality", "minus target-only", "gap", "cost", "target calls", "draft share", "seconds",
        "speed-up",
    )  # fmt: skip
    words = f"Configurations: {few}" if few else "Configurations, with 95 % intervals over prompts"
    return sortable(words, headers, rows)


def _configuration(one: Mapping[str, Any], metric: str) -> list[Cell]:
    return [
        Cell(one["name"]),
        figure(one["metrics"].get(metric)),
        figure(one["against"].get("target-only")),
        figure(one.get("share_of_gap"), 0, " %", 100),
        figure(one.get("cost")),
        figure(one.get("target_calls")),
        figure(one.get("draft_share"), 0, " %", 100),
        figure(one["seconds"].get("total")),
        figure(one.get("speed_up")),
    ]


def _rows_part(folder: Path) -> tuple[Markup | None, int]:
    """Return the table of rows, and their number."""
    path = folder / ROWS
    if not is_there(path):
        return None, 0
    try:
        if not lies_in(path, folder) or path.stat().st_size > LARGEST_ROWS:
            raise BadInput(
                f"{ROWS} must be a file of at most {LARGEST_ROWS // MEGABYTE} MB in the folder itself, but is not; "
                "put it there"
            )
        records = list(read_records(path, ROW_KEY).values())
    except (OSError, BadInput) as error:
        return _sentence(without_folder(error, folder)), 0
    metrics = list(dict.fromkeys(name for row in records for name in _metrics(row)))[:MOST_METRICS]
    headers = ("configuration", "prompt", "seed", "route", "worst frame", "draft share", "seconds", *metrics)
    shown = [_row(row, metrics) for row in records[:MOST_ROWS]]
    more = len(records) - len(shown)
    words = f"Rows: one per configuration, prompt and seed ({len(records)})"
    note = _sentence(f"The first {MOST_ROWS} rows are shown; {more} more are in {ROWS}.") if more else None
    present = {FATES[letter] for row in records for letter in _route(row) if letter in FATES}
    return joined((sortable(words, headers, shown), note, legend(present))), len(records)


def _row(row: Record, metrics: list[str]) -> list[Cell]:
    accepted, seconds = row.get("accepted"), row.get("seconds")
    worst = row.get("worst_scores")
    scores = [n for n in map(number, worst if isinstance(worst, list) else ()) if n is not None]
    kept = accepted if isinstance(accepted, list) and accepted else None
    return [
        Cell(row["configuration"]),
        Cell(row["prompt"]),
        Cell(row["seed"], number(row["seed"])),
        Cell(element("span", *_letters(_route(row)), class_="letters")),
        figure(min(scores)) if scores else NOTHING,
        figure(sum(one is True for one in kept) / len(kept), 0, " %", 100) if kept else NOTHING,
        figure(seconds.get("total") if isinstance(seconds, dict) else None),
        *(figure(_metrics(row).get(name)) for name in metrics),
    ]


def _metrics(row: Record) -> Mapping[str, Any]:
    metrics = row.get("metrics")
    return metrics if isinstance(metrics, dict) else {}


def _route(row: Record) -> str:
    route = row.get("route")
    return route[:LONGEST_ROUTE] if isinstance(route, str) else ""


def _letters(route: str) -> Iterator[Markup]:
    for letter in route:
        fate: Fate | None = FATES.get(letter)
        yield element("b", letter, class_=style_of(fate) if fate else None, title=fate.value if fate else None)


def _sentence(text: str) -> Markup:
    return element("p", text, class_="faint")
