"""Make a table and a bar chart from the results of run_gpu.sh: speed.md and speed.png.

    python -m benchmarks.show RESULTS [--out FOLDER] [--run NAME]

RESULTS has a file NAME.json for each step, with a line of `bench --json`. Files without one (of a step that was
killed, or that measures no times) are listed and left out. The page shows each run separately; the chart shows one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdvg_core.errors import BadInput, first_line
from sdvg_core.files.outputs import staged_outputs
from sdvg_core.files.small_files import MEGABYTE, parse_json, read_small

from .results import SCHEMA
from .speed_chart import limits_of, speed_chart
from .speed_table import section, speed_page

PAGE, PICTURE = "speed.md", "speed.png"
FIRST = ("routes", "fast")
LARGEST = 10 * MEGABYTE


def read_runs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the runs in a folder by name, the most important first; list the files that have none.

    Raises `BadInput` if there is no run at all.
    """
    runs = {}
    for path in sorted(folder.glob("*.json"), key=_place):
        try:
            runs[path.stem] = read_run(path)
        except (OSError, ValueError) as error:
            print(f"show: {path.name} is left out: {first_line(error)}", file=sys.stderr)
    if not runs:
        raise BadInput(
            f"{folder} should hold results of benchmarks/run_gpu.sh, but no file there has times of a finished "
            "video; run it, or name the folder it wrote into"
        )
    return runs


def _place(path: Path) -> tuple[int, str]:
    return (FIRST.index(path.stem) if path.stem in FIRST else len(FIRST), path.stem)


def read_run(path: Path) -> Mapping[str, Any]:
    """Return what a run measured. Raises `OSError`, and `ValueError` if it measured nothing."""
    content = read_small(path, LARGEST)
    if not content.strip():
        raise ValueError("it is empty, as its step did not get that far; its .log says why")
    try:
        result = parse_json(content.splitlines()[0])
    except ValueError:
        raise ValueError("it is cut short or not JSON; run its step again") from None
    if not isinstance(result, dict) or result.get("benchmark") != "sdvg":
        raise ValueError("it has no times of routes")
    if result.get("schema") != SCHEMA:
        raise ValueError(f"it has schema {result.get('schema')}, and this version reads {SCHEMA}")
    if not result.get("cases"):
        raise ValueError("no video was finished")
    try:
        # Together these read every value that page and chart show.
        section(path.stem, result)
        limits_of(result)
    except (KeyError, TypeError) as error:
        raise ValueError(f"another version wrote it (this one fails on {error!r})") from None
    return result


def read_commit(folder: Path) -> str | None:
    """Return the measured commit, or all of them if steps were repeated at others; None if none is recorded."""
    path = folder / "commit.txt"
    return " and ".join(path.read_text(encoding="utf-8").split()) or None if path.is_file() else None


def show(folder: Path, out: Path, run: str | None) -> None:
    """Write both files together. Raises `BadInput` if there is nothing to show, or nowhere to write it."""
    runs = read_runs(folder)
    charted = run or next(iter(runs))
    if charted not in runs:
        raise BadInput(f"--run must be one of {', '.join(runs)}, but is {charted}; choose one of them")
    page = speed_page(runs, charted=charted, picture=PICTURE, commit=read_commit(folder))
    picture = speed_chart(runs[charted])
    with staged_outputs(out) as staging:
        staging.path(PAGE).write_text(page, encoding="utf-8")
        picture.savefig(staging.path(PICTURE), format="png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Show a folder of results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS", help="the folder that run_gpu.sh wrote into")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default RESULTS)")
    parser.add_argument(
        "--run", metavar="NAME", help="which run the chart shows (default routes, else fast, else any)"
    )
    options = parser.parse_args(arguments)
    out = options.out or options.results
    try:
        show(options.results, out, options.run)
    except BadInput as error:
        print(f"show: {error}", file=sys.stderr)
        return 2
    print(f"{out / PAGE} and {out / PICTURE} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
